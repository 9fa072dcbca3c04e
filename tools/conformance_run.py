"""Conformance run: tries the promises of a store on a live one. It prints nothing.

What it stores has keys that nobody else uses, and is removed again: a store that holds other
objects keeps them.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from threading import Thread
from time import monotonic
from typing import Literal

from unikv.backends.batch import explain
from unikv.backends.url import mask
from unikv.errors import StoreError, UnikvError
from unikv.registry import open_store
from unikv.store import Item, Store
from unikv.testing_checks import NotApplicable
from unikv.testing_data import FAILED, Keys
from unikv.testing_elsewhere import open_by, opener_of
from unikv.testing_promises import Promise, Promises, all_promises

LISTED = 10_000
"""Objects that a store may hold for listings of all of them to be tried."""

_REMOVED = 200  # keys in one batch

Verdict = Literal["kept", "broken", "not applicable", "not tried"]
Tick = Callable[[int, int, str], None]
"""Told how many promises are tried, of how many, and which is next."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one promise."""

    promise: Promise
    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Findings:
    """What became of all."""

    url: str  # without what may be secret
    findings: Sequence[Finding]
    left: Sequence[str] = field(default=())
    """Keys that were stored and could not be removed."""

    @property
    def ok(self) -> bool:
        """Whether no promise was broken, and every other one could be tried."""
        return not (self.left or self.count("broken") or self.count("not tried"))

    @property
    def hung(self) -> bool:
        """Whether a call is still going on, which would keep the process from its end."""
        return bool(self.count("not tried"))

    def count(self, verdict: Verdict) -> int:
        """Return how many promises came out so."""
        return sum(finding.verdict == verdict for finding in self.findings)


def try_promises(
    url: str, *, only: str = "", limit_s: float = 120.0, tick: Tick | None = None
) -> Findings:
    """Try every promise on the store that a URL names, or those whose name has ``only`` in it.

    Args:
        url: of the store.
        only: a part of the names of promises, written with spaces or underscores.
        limit_s: seconds that one promise may take; the first that takes longer is the last tried.
        tick: told before each promise.

    Raises:
        UnikvError: the store cannot be opened, or nothing be stored there.
    """
    subject = _Subject(url)
    try:
        subject.require_writable()
        promises = Promises()
        promises.lists, whole, listing = subject.try_listing()
        wanted = only.replace(" ", "_").lower()
        chosen = [each for each in all_promises(promises) if wanted in each.name.lower()]
        if not chosen:
            raise UnikvError(f"no promise has {only!r:.80} in its name: want a part of one, as B53")
        found: list[Finding] = []
        left: list[str] = []
        for promise in chosen:
            if subject.hung:
                found.append(Finding(promise, "not tried"))
                continue
            if tick is not None:
                tick(len(found), len(chosen), promise.name)
            keys = Keys(alone=False, whole=whole)
            finding = subject.judge(promise, keys, limit_s)
            if listing and promise.group == "list" and finding.verdict == "not applicable":
                finding = Finding(promise, "not applicable", listing, finding.seconds)
            found.append(finding)
            given = sorted(keys.given)
            left += given if subject.hung else subject.remove(given)
        return Findings(mask(url), found, left)
    finally:
        if not subject.hung:
            subject.close()


class _Subject:
    """The store that is tried, opened as often as promises end it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = open_store(url)
        self._second: Store | None = None
        self.hung = False

    def store(self) -> Store:
        if self._store is None:
            self._store = open_store(self._url)
        return self._store

    def second(self) -> Store:
        """Return another view of the store, as another process would open it, or the same."""
        if self._second is None:
            try:
                self._second = open_by(opener_of(self.store()))
            except NotApplicable:
                return self.store()
        return self._second

    def close(self) -> None:
        stores = (self._second, self._store)
        self._store = self._second = None
        for store in stores:
            if store is not None:
                with suppress(StoreError):
                    store.close()

    def require_writable(self) -> None:
        """Raise `StoreError` unless an object can be stored."""
        key = Keys(alone=False).page("probe")
        outcomes = self.store().put([Item(key, [b"probe"])])
        if outcomes.codes[0] == FAILED:
            raise explain("nothing can be stored there", outcomes.errors[0])
        self.remove([key])

    def try_listing(self) -> tuple[bool, bool, str]:
        """Return whether listings work, whether one of all is short enough, and why not."""
        try:
            objects = sum(1 for _ in islice(self.store().list(), LISTED + 1))
        except StoreError as error:
            return False, False, f"the backend cannot list: {error}"
        return True, objects <= LISTED, ""

    def judge(self, promise: Promise, keys: Keys, limit_s: float) -> Finding:
        """Try one promise."""
        start = monotonic()
        outcome: list[BaseException] = []

        def attempt() -> None:
            try:
                promise.keep(**promise.values, **self._given(promise, keys))
            except BaseException as error:  # noqa: BLE001 - it is what is looked for
                outcome.append(error.with_traceback(None))

        thread = Thread(target=attempt, name="unikv-conformance", daemon=True)
        thread.start()
        thread.join(limit_s)
        seconds = monotonic() - start
        if thread.is_alive():
            self.hung = True
            told = f"no end after {limit_s:g} s: no other is tried"
            return Finding(promise, "broken", told, seconds)
        error = outcome[0] if outcome else None
        self._renew(after=error)
        if error is None:
            return Finding(promise, "kept", "", seconds)
        if isinstance(error, NotApplicable):
            return Finding(promise, "not applicable", str(error), seconds)
        if isinstance(error, AssertionError):
            return Finding(promise, "broken", str(error) or "an assertion failed", seconds)
        told = f"{type(error).__name__} where none should be: {error}"
        return Finding(promise, "broken", told, seconds)

    def remove(self, keys: Sequence[str]) -> list[str]:
        """Remove objects; return the keys of those that may still be there."""
        left: list[str] = []
        for at in range(0, len(keys), _REMOVED):
            part = keys[at : at + _REMOVED]
            try:
                codes = self.store().delete(part).codes
            except StoreError:
                codes = [FAILED] * len(part)
            left += (key for key, code in zip(part, codes, strict=True) if code == FAILED)
        return left

    def _given(self, promise: Promise, keys: Keys) -> dict[str, object]:
        """Return what a promise wants to be given."""
        open_one: dict[str, Callable[[], object]] = {
            "store": self.store,
            "second": self.second,
            "keys": lambda: keys,
        }
        return {name: open_one[name]() for name in promise.wants}

    def _renew(self, *, after: BaseException | None) -> None:
        """Let go of stores that are closed, or that a broken promise may have left in disorder."""
        try:
            healthy = after is None or isinstance(after, NotApplicable)
            healthy = healthy and list(self.store().stat([])) == []
        except StoreError:
            healthy = False
        if not healthy:
            self.close()
