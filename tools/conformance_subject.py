"""Conformance subject: the store under trial, each call of it in a thread that may be given up.

It knows no promise. A backend may raise anything in any call, answer anything, or never answer.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from threading import Thread
from typing import Generic, NamedTuple, TypeVar

from unikv.errors import StoreError, UnikvError
from unikv.registry import open_store
from unikv.store import Item, Store
from unikv.testing_checks import NotApplicable
from unikv.testing_data import FAILED, Keys
from unikv.testing_elsewhere import open_by, opener_of
from unikv.tools.conformance_answers import Watched, outcomes_flaw
from unikv.tools.conformance_words import QUOTED, Words

LISTED = 10_000
"""Objects that a store may hold for listings of all of them to be tried."""

_REMOVED = 200  # keys in one batch
_OWN = 500  # characters of an error that is, in part at least, of unikv itself

_T = TypeVar("_T")


class HangError(UnikvError):
    """A call that did not end in time, and goes on: the process cannot end as others do."""


class Ended(NamedTuple, Generic[_T]):
    """What became of a call: its value, or what it raised, or a `HangError`."""

    value: _T | None
    error: BaseException | None


class Listing(NamedTuple):
    """What is known of a store's listings."""

    lists: bool
    """Whether there are any."""
    whole: bool
    """Whether one of all objects is short enough to be tried."""
    why: str
    """Why not, or what is wrong."""
    hung: bool = False


class Subject:
    """The store that is tried, opened as often as promises end it.

    Raises:
        UnikvError: it cannot be opened.
    """

    def __init__(self, url: str, limit_s: float) -> None:
        self.words = Words.for_url(url)
        self.hung = False
        self.faults: dict[str, str] = {}
        """What went wrong beside the promises: the first of each call."""
        self._url = url
        self._limit_s = limit_s
        self._second: Watched | None = None
        opened = self.within(lambda: open_store(url))
        if opened.error is not None:
            raise self._cannot_open(opened.error) from None
        assert opened.value is not None
        self._raw: Store = opened.value
        self._store: Watched | None = Watched(self._raw, self.words)

    def within(self, call: Callable[[], _T]) -> Ended[_T]:
        """Do something with the store in another thread, for as long as one thing may take."""
        ended: list[Ended[_T]] = []

        def attempt() -> None:
            try:
                ended.append(Ended(call(), None))
            except BaseException as error:  # noqa: BLE001 - it is what is looked for
                ended.append(Ended(None, error.with_traceback(None)))

        thread = Thread(target=attempt, name="unikv-conformance", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if ended:
            return ended[0]
        self.hung = True
        return Ended(None, HangError(f"no end after {self._limit_s:g} s"))

    def store(self) -> Watched:
        """Return the store, opened anew if need be; what a promise calls."""
        if self._store is None:
            self._store = Watched(open_store(self._url), self.words)
        return self._store

    def second(self) -> Watched:
        """Return another view of the store, as another process would open it, or the same."""
        if self._second is None:
            try:
                self._second = Watched(open_by(opener_of(self.store())), self.words)
            except NotApplicable:
                return self.store()
        return self._second

    def close(self) -> None:
        """Let go of the store; what goes wrong is a fault."""
        stores = (self._second, self._store)
        self._store = self._second = None
        for store in stores:
            if store is not None and not self.hung:
                self._fault("close", self.within(store.close).error)

    def try_writing(self) -> list[str]:
        """Store an object and remove it; return its key if that fails, too.

        An answer that is none is a fault.

        Raises:
            UnikvError: nothing can be stored.
        """
        key = Keys(alone=False).page("probe")
        ended = self.within(lambda: self._raw.put([Item(key, [b"probe"])]))
        if isinstance(ended.error, HangError):
            raise HangError(f"nothing can be stored there: put has {ended.error}")
        why = "" if ended.error is None else f"put raised {self.words.named(ended.error)}"
        if isinstance(ended.error, StoreError):
            why = self.words.of(ended.error)
        elif not why:
            looked = self.within(lambda: outcomes_flaw(1, ended.value))
            flaw = looked.value if looked.error is None else self.words.named(looked.error)
            if flaw:
                self.faults["put"] = f"put of 1 item {self.words.quote(flaw)}"
            elif ended.value is not None and ended.value.codes[0] == FAILED:
                why = self.words.of(ended.value.errors[0])
        if why:
            raise StoreError(f"nothing can be stored there: {why}")
        return self.remove([key])

    def try_listing(self) -> Listing:
        """Look whether there are listings. What is wrong with them is left to the promises."""
        ended = self.within(lambda: sum(1 for _ in islice(self.store().list(), LISTED + 1)))
        if isinstance(ended.error, HangError):
            return Listing(True, False, f"the listing of all has {ended.error}", True)  # noqa: FBT003
        if isinstance(ended.error, StoreError):
            told = f"the backend cannot list: {self.words.of(ended.error)}"
            return Listing(False, False, told)  # noqa: FBT003
        return Listing(True, (ended.value or 0) <= LISTED, "")  # noqa: FBT003

    def remove(self, keys: Sequence[str]) -> list[str]:
        """Remove objects; return the keys of those that may still be there."""
        removed: set[str] = set()
        wrong: list[BaseException] = []

        def attempt() -> None:
            for at in range(0, len(keys), _REMOVED):
                part = keys[at : at + _REMOVED]
                try:
                    outcomes = self.store().delete(part)
                except BaseException as error:  # noqa: BLE001 - the next part may go
                    wrong.append(error.with_traceback(None))
                    continue
                wrong.extend(outcomes.errors.values())
                gone = zip(part, outcomes.codes, strict=True)
                removed.update(key for key, code in gone if code != FAILED)

        ended = self.within(attempt)
        self._fault("delete", *wrong, ended.error)
        return [key for key in keys if key not in removed.copy()]

    def renew(self, *, after: BaseException | None) -> None:
        """Let go of stores that are closed, or that a broken promise may have left in disorder."""
        healthy = after is None or isinstance(after, NotApplicable)
        if healthy:
            ended = self.within(lambda: self.store().stat([]))
            healthy = ended.error is None
            if not isinstance(ended.error, StoreError):  # which one that is closed raises
                self._fault("stat", ended.error)
        if not healthy and not self.hung:
            self.close()

    def _fault(self, call: str, *errors: BaseException | None) -> None:
        for error in errors:
            if error is not None:
                expected = isinstance(error, StoreError | HangError | AssertionError)
                told = self.words.of(error) if expected else self.words.named(error)
                self.faults.setdefault(call, told if told.startswith(call) else f"{call}: {told}")

    def _cannot_open(self, error: BaseException) -> UnikvError:
        if isinstance(error, HangError):
            return HangError(f"the store cannot be opened: {error}")
        if not isinstance(error, UnikvError):
            return UnikvError(f"the store cannot be opened: {self.words.named(error)}")
        told = self.words.of(error, QUOTED if isinstance(error, StoreError) else _OWN)
        return error if told == str(error) else UnikvError(told)
