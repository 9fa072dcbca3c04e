"""Odd: a file store that breaks the contract while a gate is shut, in whatever process it is."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.io_path.lab import Lab
from unikv.registry import open_store
from unikv.store import Opener, Outcomes, Store


class Panic(BaseException):
    """As libraries in Rust raise it."""


class Unprintable(Exception):  # noqa: N818 - what it is is the point
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Integer(int):
    """A number that is not quite an int, as numpy's are."""


class Number:
    """A number that is none of Python's."""

    def __index__(self) -> int:
        return 7


ERRORS: dict[str, BaseException] = {
    "RuntimeError": RuntimeError("out of cheese"),
    "MemoryError": MemoryError(),
    "StopIteration": StopIteration(),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "SystemExit": SystemExit(3),
    "CancelledError": asyncio.CancelledError(),
    "Panic": Panic("called `Option::unwrap()` on a `None` value"),
    "Unprintable": Unprintable(),
    "surrogates": RuntimeError("\udcff\ud800 \x00 " + "x" * 10_000),
    "OSError": OSError(5, "Input/output error"),
    "AssertionError": AssertionError(),
}
CODES: dict[str, Any] = {"code 99": 99, "code -1": -1, "no code": None, "code text": "OK"}
ANSWERS = ("None", "too few", "foreign numbers", "texts", *CODES)
ODD = [*ERRORS, *ANSWERS]


class Odd:
    """The store."""

    def __init__(self, url: str, how: str, gate: str) -> None:
        self._store = open_store(url)
        self._arguments = [url, how, gate]
        self._how = how
        self._gate = Path(gate)

    @classmethod
    def wrap(cls, lab: Lab, how: str) -> Store:
        """Open the lab's store."""
        return cls(lab.url, how, lab.gate())

    @property
    def opener(self) -> Opener:
        return Opener("tests.io_path.odd", "Odd", self._arguments)

    def put(self, items: Sequence[Any], *, replace: bool = False) -> Any:
        return self._spoil(self._store.put(items, replace=replace))

    def get(self, spans: Sequence[Any]) -> Any:
        return self._spoil(self._store.get(spans))

    def stat(self, keys: Sequence[str]) -> Any:
        return self._spoil(self._store.stat(keys))

    def close(self) -> None:
        self._store.close()

    def delete(self, keys: Sequence[str]) -> Any:
        return self._spoil(self._store.delete(keys))

    def list(self, prefix: str = "") -> Any:
        return self._store.list(prefix)

    def _spoil(self, answer: Any) -> Any:
        if not self._gate.exists():
            return answer
        if self._how in ERRORS:
            raise ERRORS[self._how]
        if isinstance(answer, Outcomes):
            return _outcomes(self._how, answer)
        answers: dict[str, Any] = {
            "None": None,
            "texts": ["x"] * len(answer),
            "too few": [*answer][:-1],
            "foreign numbers": [Number() if size is None else Integer(size) for size in answer],
        }
        return answers.get(self._how, answer)


def _outcomes(how: str, answer: Outcomes) -> Any:
    codes: dict[str, list[Any]] = {
        "texts": ["x"] * len(answer.codes),
        "too few": [*answer.codes][:-1],
        "foreign numbers": [Integer(code) for code in answer.codes],
        **{name: [code] * len(answer.codes) for name, code in CODES.items()},
    }
    return None if how == "None" else Outcomes(codes[how], answer.errors)
