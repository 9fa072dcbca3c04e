"""Pair: a fast and a slow store, and how far the fast one is to be believed. No queues."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from unikv.backends.tiered_calls import try_delete, try_get, try_put, try_stat
from unikv.backends.tiered_holds import Holds
from unikv.backends.tiered_report import Tally
from unikv.backends.tiered_rest import Rest
from unikv.errors import StoreError
from unikv.store import Item, Outcome, Outcomes, Span, Store

STALE = 100_000
"""Keys of which the fast tier may hold an older version; with more of them it is not read."""

_CLEANED = 256  # keys at once


class Pair:
    """Two stores. What the fast one fails is counted, and never the end of a call."""

    def __init__(self, fast: Store, slow: Store) -> None:
        self.fast, self.slow = fast, slow
        self.holds = Holds()  # of who changes the fast one; see `Moves`
        self.slow_holds = Holds()  # of who writes to the slow one
        self.tally = Tally()
        self.rest = Rest()
        self.stale: set[str] = set()

    @property
    def reads_fast(self) -> bool:
        """Whether the fast tier is to be read."""
        return not self.rest.on and len(self.stale) < STALE

    def get_fast(self, spans: Sequence[Span]) -> Outcomes:
        """Read from the fast tier what can be believed; all else misses or fails."""
        if not self.reads_fast:
            return self._left_alone(len(spans))
        told = try_get(self.fast, spans)
        self._note("get", told)
        stale = [place for place, span in enumerate(spans) if span.key in self.stale]
        if not stale:
            return told
        codes, errors = list(told.codes), dict(told.errors)
        for place in stale:
            codes[place] = Outcome.MISS
            errors.pop(place, None)
        return Outcomes(codes, errors)

    def stat_fast(self, keys: Sequence[str]) -> list[int | None]:
        """Return sizes in the fast tier, None where it is not to be believed."""
        if not self.reads_fast:
            return [None] * len(keys)
        sizes, error = try_stat(self.fast, keys)
        self.rest.note("stat", failed=error is not None and error.retryable)
        if error is not None:
            self.tally.fast_failed([error])
        return [None if key in self.stale else n for key, n in zip(keys, sizes, strict=True)]

    def put_fast(self, items: Sequence[Item], *, replace: bool) -> Outcomes:
        """Store in the fast tier, unless it is being left alone."""
        if not items:
            return Outcomes([])
        if self.rest.on:
            return self._left_alone(len(items))
        wrote = try_put(self.fast, items, replace=replace)
        self._note("put", wrote)
        for item, code in zip(items, wrote.codes, strict=True):
            if code == Outcome.OK:
                self.stale.discard(item.key)
        if self.stale and not wrote.errors:
            self._clean()
        return wrote

    def distrust(self, keys: Sequence[str]) -> None:
        """See to it that no older version of objects is read from the fast tier."""
        if self.rest.on:
            self.stale.update(keys)
        elif keys:
            codes = self._delete_fast(keys).codes
            for key, code in zip(keys, codes, strict=True):
                (self.stale.add if code == Outcome.FAILED else self.stale.discard)(key)

    def delete(
        self, keys: Sequence[str], forget: Callable[[Sequence[str]], None], *, fast_rules: bool
    ) -> Outcomes:
        """Remove from both; an item fails where one of them fails, or is left alone.

        Where the fast tier is right it keeps what the slow one failed to remove, or an older
        version there would be read instead. ``forget`` is told what is removed from the fast one.
        """
        with self.slow_holds.of(keys):
            slow = try_delete(self.slow, keys)
            codes, errors = list(slow.codes), dict(slow.errors)
            places = [n for n, code in enumerate(codes) if code != Outcome.FAILED or not fast_rules]
            gone = [keys[place] for place in places]
            again: list[int] = []
            with self.holds.of(gone):
                forget(gone)
                fast = self._delete_fast(gone)
                for at, place in enumerate(places):
                    code, key = fast.codes[at], keys[place]
                    if code == Outcome.FAILED:
                        codes[place] = code
                        errors.setdefault(place, fast.errors[at])
                    elif code == Outcome.OK and codes[place] != Outcome.FAILED:
                        again.append(place)
                        # An older version that nobody reads any more is no object.
                        codes[place] = code if key not in self.stale else codes[place]
                    (self.stale.add if code == Outcome.FAILED else self.stale.discard)(key)
            if fast_rules and again:
                # Another process may have carried one down before it left the fast tier.
                late = try_delete(self.slow, [keys[place] for place in again])
                for at, error in late.errors.items():
                    codes[again[at]], errors[again[at]] = Outcome.FAILED, error
        return Outcomes(codes, errors)

    def count(self, errors: Iterable[StoreError]) -> None:
        """Count what the fast tier failed; that it was left alone was no failure."""
        self.tally.fast_failed(error for error in errors if not isinstance(error, _LeftAloneError))

    def _clean(self) -> None:
        """Remove some older versions, now that the fast tier answers; none that is in use."""
        with self.holds.free(islice(tuple(self.stale), _CLEANED)) as keys:
            self.distrust([key for key in keys if key in self.stale])

    def _delete_fast(self, keys: Sequence[str]) -> Outcomes:
        if not keys:
            return Outcomes([])
        if self.rest.on:
            return self._left_alone(len(keys))
        gone = try_delete(self.fast, keys)
        self._note("delete", gone)
        return gone

    def _note(self, verb: str, outcomes: Outcomes) -> None:
        errors = outcomes.errors
        dead = len(errors) == len(outcomes.codes) and all(e.retryable for e in errors.values())
        self.rest.note(verb, failed=dead and bool(errors))

    def _left_alone(self, items: int) -> Outcomes:
        error = _LeftAloneError("the fast tier failed so often that it is left alone for a while")
        error.retryable = True
        return Outcomes([Outcome.FAILED] * items, dict.fromkeys(range(items), error))


class _LeftAloneError(StoreError):
    """The fast tier was not asked."""
