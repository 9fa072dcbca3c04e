"""Conformance answers: a store whose answers are looked at before a promise sees them.

What a backend raises that is no `StoreError`, and what it answers that is no answer, is told as an
`AssertionError`: a broken promise, whichever it was.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from unikv.errors import StoreError
from unikv.store import Entry, Item, Outcome, Outcomes, Span, Store
from unikv.testing_checks import shown
from unikv.tools.conformance_words import Words
from unikv.tools.wording import count_text

_T = TypeVar("_T")


class Watched:
    """A store under trial."""

    def __init__(self, store: Store, words: Words) -> None:
        self._store = store
        self._words = words

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """See `unikv.store.Store.put`."""
        options = {"replace": True} if replace else {}
        return self._outcomes("put", len(items), lambda: self._store.put(items, **options))

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """See `unikv.store.Store.get`."""
        return self._outcomes("get", len(spans), lambda: self._store.get(spans))

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """See `unikv.store.Store.delete`."""
        return self._outcomes("delete", len(keys), lambda: self._store.delete(keys))

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """See `unikv.store.Store.stat`."""
        doing = f"stat of {count_text(len(keys), 'key')}"

        def ask() -> Sequence[int | None]:
            answer = self._store.stat(keys)
            flaw = sizes_flaw(len(keys), answer)
            if flaw:
                raise _WrongAnswerError(f"{doing} {self._words.quote(flaw)}")
            return answer

        return self._ask(doing, ask)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """See `unikv.store.Store.list`."""
        doing = f"list of {prefix!r:.80}"
        return self._entries(doing, self._ask(doing, lambda: iter(self._store.list(prefix))))

    def close(self) -> None:
        """See `unikv.store.Store.close`."""
        self._ask("close", self._store.close)

    def _entries(self, doing: str, entries: Iterator[Entry]) -> Iterator[Entry]:
        def ask() -> Entry | None:
            entry = next(entries, None)
            if entry is not None and not (isinstance(entry, Entry) and isinstance(entry.key, str)):
                raise _WrongAnswerError(
                    f"{doing} shows no Entry: {self._words.quote(shown(entry))}"
                )
            return entry

        while (entry := self._ask(doing, ask)) is not None:
            yield entry

    def _outcomes(self, verb: str, items: int, call: Callable[[], Outcomes]) -> Outcomes:
        doing = f"{verb} of {count_text(items, 'item')}"

        def ask() -> Outcomes:
            answer = call()
            flaw = outcomes_flaw(items, answer)
            if flaw:
                raise _WrongAnswerError(f"{doing} {self._words.quote(flaw)}")
            return answer

        return self._ask(doing, ask)

    def _ask(self, doing: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except (StoreError, _WrongAnswerError):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a backend raises
            raise AssertionError(f"{doing} raised {self._words.named(error)}") from None


class _WrongAnswerError(AssertionError):
    """What a call answered is no answer."""


def outcomes_flaw(items: int, answer: object) -> str:
    """Return what is wrong with an answer of `put`, `get` or `delete`, nothing if it is one."""
    if not isinstance(answer, Outcomes):
        return f"answered no Outcomes: {shown(answer)}"
    if len(answer.codes) != items:
        return f"answered {count_text(len(answer.codes), 'code')}: want one for each"
    for position, code in enumerate(answer.codes):
        if code not in tuple(Outcome):
            return f"answered what is no Outcome: {shown(code)}"
        if code == Outcome.FAILED and not isinstance(answer.errors.get(position), StoreError):
            return f"answered FAILED for item {position} without a StoreError"
    return ""


def sizes_flaw(keys: int, answer: object) -> str:
    """Return what is wrong with an answer of `stat`, nothing if it is one."""
    if not isinstance(answer, Sequence):
        return f"answered no sequence: {shown(answer)}"
    if len(answer) != keys:
        return f"answered {count_text(len(answer), 'size')}: want one for each"
    wrong = [size for size in answer if not (size is None or isinstance(size, int))]
    return f"answered what is no size: {shown(wrong[0])}" if wrong else ""
