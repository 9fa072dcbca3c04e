"""Whatever a backend raises, answers or leaves unanswered, `unikv conformance` ends with a report.

A backend under development is what the command is for.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from tests.io_path.lab import within
from unikv import registry
from unikv.backends.memory import MemoryStore
from unikv.backends.url import StoreUrl
from unikv.errors import KeyFormatError, StoreError
from unikv.registry import Scheme
from unikv.store import Outcome, Outcomes
from unikv.tools import conformance
from unikv.tools.cli import main

OK, EXISTED, MISS, FAILED = Outcome
URL = "trial://user:hunter22pw@host/x?api_token=s3cr3t%2Fword"
SEES = {
    "put": "all calls agree",
    "get": "all calls agree",
    "stat": "all calls agree",
    "delete": "all calls agree",
    "list": "listing shows what is there",
    "close": "closed store",
}
"""Which promise looks at each call."""


class TextlessError(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")


class Told:
    """What a run of the command told, and how it ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self.status = main(["conformance", URL, "--json", *words])
        out, self.err = capsys.readouterr()
        self.found: dict[str, Any] = json.loads(out) if out else {}
        assert "Traceback" not in out + self.err
        assert "hunter22" not in out + self.err
        assert "s3cr3t" not in out + self.err
        assert "x" * 201 not in out + self.err
        assert bool(out) is (self.status < 2) is not bool(self.err)
        assert len(self.err.splitlines()) == (self.status == 2)
        assert bool(self.found.get("ok")) is (self.status == 0)

    @property
    def reasons(self) -> set[str]:
        return {one["reason"] for one in self.found["promises"] if one["verdict"] == "broken"}


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> type[MemoryStore]:
    """Provide the class of the store that is tried, for a test to spoil."""

    class Store(MemoryStore):
        pass

    class Backend:
        @staticmethod
        def open_url(_: StoreUrl) -> MemoryStore:
            return Store()

    monkeypatch.setitem(registry.SCHEMES, "trial", Scheme("", "trial://"))
    monkeypatch.setattr(registry, "_load", lambda *_: Backend)
    return Store


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Provide the statuses with which the process would have ended at once."""
    ended: list[int] = []
    monkeypatch.setattr(conformance.os, "_exit", ended.append)  # type: ignore[attr-defined]
    return ended


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> NoReturn:
        raise error

    return call


def answering(answer: Callable[[int], object]) -> Callable[..., Any]:
    return lambda _, items=(), **__: answer(len(items))


# What is raised


@pytest.mark.parametrize("call", SEES)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom hunter22pw and s3cr3t/word"),
        KeyError("late"),
        KeyFormatError("no key"),
        AssertionError("x" * 9999),
        MemoryError(),
        SystemExit(0),
        KeyboardInterrupt(),
        TextlessError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_call_raises_is_told(
    trial: type[MemoryStore], capsys: pytest.CaptureFixture[str], call: str, error: BaseException
) -> None:
    setattr(trial, call, raising(error))
    told = Told(capsys, "--only", SEES[call])
    name = type(error).__name__
    if call == "put":  # there is nothing to try then
        assert told.status == 2
        assert f"nothing can be stored there: put raised {name}" in told.err
    else:
        assert told.status == 1
        assert any(call in reason and f"raised {name}" in reason for reason in told.reasons)
        assert bool(told.found["faults"]) is (call in ("delete", "close"))
        assert bool(told.found["left_keys"]) is (call == "delete")


def test_a_put_that_raises_later_breaks_promises(
    trial: type[MemoryStore], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = iter(range(9999))

    def put(self: MemoryStore, items: Any, **options: Any) -> Outcomes:
        if next(calls):
            raise ValueError("boom")
        return MemoryStore.put(self, items, **options)

    trial.put = put  # type: ignore[method-assign]
    told = Told(capsys, "--only", "half open")
    assert (told.status, told.reasons) == (1, {"put of 1 item raised ValueError: boom"})


def test_a_listing_that_raises_late_breaks_promises(
    trial: type[MemoryStore], capsys: pytest.CaptureFixture[str]
) -> None:
    def entries(self: MemoryStore, prefix: str = "") -> Iterator[object]:
        yield from MemoryStore.list(self, prefix)
        raise KeyError("late")

    trial.list = entries  # type: ignore[assignment, method-assign]
    told = Told(capsys, "--only", "listing shows what is there")
    assert (told.status, told.reasons) == (1, {"list of '' raised KeyError: 'late'"})


@pytest.mark.parametrize("error", [ValueError("x" * 9999), SystemExit("bye"), TextlessError()])
def test_what_opening_raises_is_one_line(
    trial: type[MemoryStore], capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    trial.__init__ = raising(error)  # type: ignore[method-assign]
    told = Told(capsys)
    assert told.status == 2
    assert f"cannot be opened: {type(error).__name__}" in told.err


@pytest.mark.parametrize("call", ["__init__", "put"])
def test_an_error_of_a_backend_is_one_short_line(
    trial: type[MemoryStore], capsys: pytest.CaptureFixture[str], call: str
) -> None:
    setattr(trial, call, raising(StoreError("\x1b[31mred\nnew line " + "x" * 9999)))
    told = Told(capsys)
    assert told.status == 2
    assert "\\x1b[31mred\\nnew line xxx" in told.err


def test_what_is_raised_where_a_store_is_opened_again_is_told(
    trial: type[MemoryStore], capsys: pytest.CaptureFixture[str]
) -> None:
    opened = iter(range(9999))

    def init(self: MemoryStore) -> None:
        if next(opened):
            raise ValueError("once only")
        MemoryStore.__init__(self)

    trial.__init__ = init  # type: ignore[method-assign]
    trial.get = raising(RuntimeError("bad"))  # type: ignore[method-assign]
    told = Told(capsys)
    assert told.status == 1
    assert "raised where nothing should be: ValueError: once only" in told.reasons
    assert any("once only" in fault for fault in told.found["faults"])  # nor is it removed


@pytest.mark.parametrize("name", ["opener", "__repr__"])
def test_a_broken_attribute_is_a_broken_promise_at_most(
    trial: type[MemoryStore], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    broken = raising(ValueError("boom"))
    setattr(trial, name, property(broken) if name == "opener" else broken)
    told = Told(capsys)
    assert told.status == (name == "opener")
    assert told.found["faults"] == []
    if name == "opener":
        assert told.reasons == {"raised where nothing should be: ValueError: boom"}


# What is answered


@pytest.mark.parametrize("call", ["put", "get", "delete"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _: None, "answered no Outcomes: None"),
        (lambda _: "x" * 9999, "answered no Outcomes: 'xxx"),
        (lambda n: Outcomes([OK] * (n + 1)), "codes: want one for each"),
        (lambda _: Outcomes([]), "answered 0 codes: want one for each"),
        (lambda n: Outcomes([FAILED] * n), "answered FAILED for item 0 without a StoreError"),
        (
            lambda n: Outcomes([FAILED] * n, dict.fromkeys(range(n), "x")),  # type: ignore[arg-type]
            "answered FAILED for item 0 without a StoreError",
        ),
        (lambda n: Outcomes([7] * n), "answered what is no Outcome: 7"),  # type: ignore[list-item]
        (lambda _: Outcomes(None), "raised TypeError"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_answer_breaks_promises(
    trial: type[MemoryStore],
    capsys: pytest.CaptureFixture[str],
    call: str,
    answer: Callable[[int], object],
    words: str,
) -> None:
    setattr(trial, call, answering(answer))
    told = Told(capsys, "--only", SEES[call])
    assert told.status == 1
    assert any(call in reason and words in reason for reason in told.reasons)


@pytest.mark.parametrize(
    ("call", "answer", "words"),
    [
        ("stat", lambda _: None, "answered no sequence: None"),
        ("stat", lambda n: iter([None] * n), "answered no sequence: <list_iterator"),
        ("stat", lambda n: [None] * (n + 1), "sizes: want one for each"),
        ("stat", lambda n: ["x"] * n, "answered what is no size: 'x'"),
        ("list", lambda _: None, "raised TypeError"),
        ("list", lambda _: iter(["x" * 9999]), "list of '' shows no Entry: 'xxx"),
    ],
)
def test_a_wrong_size_or_entry_breaks_promises(
    trial: type[MemoryStore],
    capsys: pytest.CaptureFixture[str],
    call: str,
    answer: Callable[[int], object],
    words: str,
) -> None:
    setattr(trial, call, answering(answer))
    told = Told(capsys, "--only", SEES[call])
    assert told.status == 1
    assert any(words in reason for reason in told.reasons)


def test_a_wrong_answer_that_no_promise_sees_is_told_all_the_same(
    trial: type[MemoryStore], capsys: pytest.CaptureFixture[str]
) -> None:
    trial.put = answering(lambda n: Outcomes([]) if n else Outcomes([], {}))  # type: ignore[method-assign]
    told = Told(capsys, "--only", "empty batch")
    assert (told.status, told.reasons) == (1, set())
    assert told.found["faults"] == ["put of 1 item answered 0 codes: want one for each"]


# What does not end


def hanging(*_: object, **__: object) -> NoReturn:
    while True:
        time.sleep(0.1)


def hanging_entries(*_: object, **__: object) -> Iterator[object]:
    yield from iter(hanging, None)


@pytest.mark.parametrize(
    ("call", "status", "words"),
    [
        ("__init__", 2, "the store cannot be opened: no end after 0.5 s"),
        ("put", 2, "nothing can be stored there: put has no end after 0.5 s"),
        ("get", 1, "no end after 0.5 s: no other is tried"),
        ("list", 1, "the listing of all has no end after 0.5 s: no other is tried"),
        ("delete", 1, "delete: no end after 0.5 s"),
        ("close", 1, "close: no end after 0.5 s"),
    ],
)
def test_what_hangs_is_given_up(
    trial: type[MemoryStore],
    capsys: pytest.CaptureFixture[str],
    ended: list[int],
    call: str,
    status: int,
    words: str,
) -> None:
    setattr(trial, call, hanging_entries if call == "list" else hanging)
    only = {"list": "a listing", "close": "half open"}.get(call, "")
    with within(3.0):
        told = Told(capsys, "--limit", "0.5", "--only", only)
    assert (told.status, ended) == (status, [status])
    if status == 2:
        assert words in told.err
    else:
        assert words in {*told.reasons, *told.found["faults"]}
        assert told.found["not_tried"] == (0 if call == "close" else told.found["not_tried"])


def test_what_cannot_be_told_ends_it_all_the_same(
    trial: type[MemoryStore], ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.get = hanging  # type: ignore[method-assign]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - no file of ours
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["conformance", URL, "--limit", "0.5"]) == 2
    assert ended == [1]


def test_of_few_objects_a_clean_up_that_hangs_names_all(
    trial: type[MemoryStore], capsys: pytest.CaptureFixture[str], ended: list[int]
) -> None:
    calls = iter(range(9999))

    def delete(self: MemoryStore, keys: Any) -> Outcomes:
        return MemoryStore.delete(self, keys) if next(calls) == 0 else hanging()

    trial.delete = delete  # type: ignore[method-assign]
    told = Told(capsys, "--limit", "0.5", "--only", "offset")
    assert ended == [1]
    verdicts = [one["verdict"] for one in told.found["promises"]]
    assert verdicts[0] == "kept"  # what it promises holds
    assert set(verdicts[1:]) == {"not_tried"}
    assert len(told.found["left_keys"]) == 1
