"""TieredStore: a fast store before a slow one, as one store. It knows neither, and no KV."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal

from unikv.backends.tiered_calls import try_get, try_put, try_stat
from unikv.backends.tiered_list import union
from unikv.backends.tiered_moves import Moves
from unikv.backends.tiered_pair import Pair
from unikv.backends.tiered_report import TierReport
from unikv.errors import StoreError
from unikv.store import Entry, Item, Opener, Outcome, Outcomes, Span, Store

Mode = Literal["write-through", "write-back"]
MODES: tuple[Mode, ...] = ("write-through", "write-back")


class TieredStore:
    """A `unikv.store.Store` that reads from ``fast`` what is there, and all else from ``slow``.

    The fast tier holds whole objects only. What a load finds in the slow tier alone is copied to
    the fast one behind its back. Both tiers belong to it: `close` closes them.

    Args:
        fast: nearer, smaller; may lose what it holds. It wants a bound of its own.
        slow: holds what is to stay.
        mode: "write-through": stored means stored in ``slow``, and failures of the fast tier are
            counted. "write-back": stored means stored in ``fast``, which alone is asked whether an
            object is there; a queue writes to ``slow``, and `report` tells what it could not.
        promote_bytes: bytes of the largest object that is copied to the fast tier; 0 copies none.
        queue_objects: objects that may wait to be written to the slow tier.
        wait_s: seconds that `close`, and by default `flush`, waits for that queue.
    """

    def __init__(
        self,
        fast: Store,
        slow: Store,
        *,
        mode: Mode = "write-through",
        promote_bytes: int = 64 << 20,
        queue_objects: int = 10_000,
        wait_s: float = 30.0,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}: want {' or '.join(map(repr, MODES))}")
        self._pair = Pair(fast, slow)
        self._back = mode == "write-back"
        self._moves = Moves(self._pair, promote_bytes, queue_objects, slow_rules=not self._back)
        self._settings = (mode, promote_bytes, queue_objects, wait_s)
        self._wait_s = wait_s
        self._pid = os.getpid()
        self._closed = False
        # Whoever lacks an object asks the slow tier, too.
        self.costly_stat = any(getattr(tier, "costly_stat", False) for tier in (fast, slow))

    def __repr__(self) -> str:
        return f"TieredStore({self._pair.fast!r}, {self._pair.slow!r}, mode={self._settings[0]!r})"

    @property
    def opener(self) -> Opener | None:
        """How another process opens the same tiers; None where it cannot open one of them."""
        tiers = [getattr(tier, "opener", None) for tier in (self._pair.fast, self._pair.slow)]
        if not all(isinstance(opener, Opener) for opener in tiers):
            return None
        told = [[one.module, one.function, list(one.arguments)] for one in tiers if one]
        return Opener("unikv.backends.tiered_url", "open_tiers", [*told, list(self._settings)])

    # The six calls

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store each object in one tier, and in the other as well; see `unikv.store.Store.put`."""
        self._require_open()
        items = [Item._make(item) for item in items]  # what unpacks as one is one, as elsewhere
        return (self._put_back if self._back else self._put_through)(items, replace=replace)

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Fill each span's views; see `unikv.store.Store.get`.

        Where the fast tier fails and the slow one misses, a write-back store fails, since the
        object may be where it cannot be read; likewise where the slow one may hold an older one.
        What left the fast tier before it was written is missed.
        """
        self._require_open()
        fast = self._pair.get_fast(spans)
        places = [place for place, code in enumerate(fast.codes) if code != Outcome.OK]
        if self._back:  # what waits to be written is newer than what the slow tier has
            waits = self._moves.waits
            places = [p for p in places if p in fast.errors or not waits(spans[p].key)]
        if self._back and fast.errors:
            failed = list(fast.errors)
            final = self._moves.only_in_fast([spans[place] for place in failed])
            places = sorted({*places} - {p for p, it in zip(failed, final, strict=True) if it})
        if not places:
            return fast
        slow = try_get(self._pair.slow, [spans[place] for place in places])
        codes, errors = list(fast.codes), dict(fast.errors)
        healed: list[StoreError] = []
        wanting = set()  # keys that the fast tier answered not to have, or not so
        for at, place in enumerate(places):
            code, error = slow.codes[at], errors.get(place)
            if code == Outcome.MISS and error is not None and self._back:
                continue
            codes[place] = code
            if code == Outcome.OK and not (error is not None and error.retryable):
                wanting.add(spans[place].key)
            if code == Outcome.FAILED:
                errors[place] = slow.errors[at]
            elif error is not None:
                healed.append(errors.pop(place))
        self._pair.count(healed)
        self._moves.promote(wanting)
        return Outcomes(codes, errors)

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return each object's size in the tier that has it; see `unikv.store.Store.stat`."""
        self._require_open()
        sizes = self._pair.stat_fast(keys)
        missing = [place for place, size in enumerate(sizes) if size is None]
        if missing:
            slow, away = try_stat(self._pair.slow, [keys[place] for place in missing])
            if away is not None and len(missing) == len(keys):
                raise away  # nothing could be asked
            for place, size in zip(missing, slow, strict=True):
                # What waits to be written is newer than what the slow tier has.
                sizes[place] = None if self._moves.waits(keys[place]) else size
        return sizes

    def refresh(self, keys: Sequence[str]) -> None:
        """Tell both tiers that objects are wanted again, if they want to know."""
        self._require_open()
        for tier in (self._pair.fast, self._pair.slow):
            refresh = getattr(tier, "refresh", None)
            if refresh is not None:
                refresh(keys)

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove each object from both tiers; see `unikv.store.Store.delete`.

        An item fails where one tier fails it, though the other may have removed it. A write-back
        store keeps in the fast tier what the slow one could not remove.
        """
        self._require_open()
        return self._pair.delete(keys, self._moves.forget, fast_rules=self._back)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Stream the objects of both tiers, each once, those of the fast one first.

        Memory grows by 8 bytes for each object of the fast tier.
        """
        self._require_open()
        return union(self._pair.fast.list(prefix), self._pair.slow.list(prefix))

    def close(self) -> None:
        """Write what waits, at most ``wait_s`` seconds; then close both tiers.

        Raises:
            StoreError: objects are in the fast tier only; `report` names them. All is closed.
        """
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():  # the queues and their threads are the parent's
            return
        self._moves.close(self._wait_s)
        for tier in (self._pair.fast, self._pair.slow):
            with suppress(StoreError):
                tier.close()
        report = self.report()
        if left := len(report.unwritten) + report.unwritten_unnamed:
            named = "".join(f"; {key!r}: {why}" for key, why in [*report.unwritten.items()][:1])
            raise StoreError(f"{left} objects are in the fast tier only{named}")

    # What goes on behind

    def flush(self, wait_s: float | None = None) -> TierReport:
        """Wait for the queue, try again what could not be written, and tell what is left.

        Args:
            wait_s: seconds to wait at most; by default those of the store.
        """
        self._require_open()
        self._moves.flush(self._wait_s if wait_s is None else wait_s)
        return self.report()

    def settle(self) -> TierReport:
        """Write to the slow tier whatever the fast one alone holds, as after a crash; then tell.

        It lists the whole fast tier and asks the slow one for each object.
        """
        self._require_open()
        self._moves.settle()
        return self.report()

    def sweep(self) -> int:
        """Remove what writers of either tier left that died; return how much."""
        self._require_open()
        sweeps = [getattr(tier, "sweep", None) for tier in (self._pair.fast, self._pair.slow)]
        return sum(sweep() for sweep in sweeps if sweep is not None)

    def register(self, buffer: memoryview) -> None:
        """Tell both tiers of memory that they will read into."""
        for tier in (self._pair.fast, self._pair.slow):
            register = getattr(tier, "register", None)
            if register is not None:
                register(buffer)

    def report(self) -> TierReport:
        """Return what was counted so far; also of a store that is closed."""
        tally = self._pair.tally
        waiting, promotions = len(self._moves.down), len(self._moves.up)
        with tally.lock:
            return TierReport(
                mode=self._settings[0],
                waiting=waiting,
                written=tally.written,
                unwritten=dict(tally.unwritten),
                unwritten_unnamed=tally.unwritten_unnamed,
                lost=tally.lost,
                fast_errors=tally.fast_errors,
                fast_error=tally.fast_error,
                fast_resting=self._pair.rest.on,
                stale=len(self._pair.stale),
                promoted=tally.promoted,
                promotions_waiting=promotions,
                promotions_dropped=tally.promotions_dropped,
                promotion_errors=tally.promotion_errors,
                promotion_error=tally.promotion_error,
            )

    def _put_through(self, items: Sequence[Item], *, replace: bool) -> Outcomes:
        keys = {item.key for item in items}
        with self._pair.slow_holds.of(keys), self._pair.holds.of(keys):
            outcomes = self._pair.slow.put(items, replace=replace)
            stored = [
                item for item, c in zip(items, outcomes.codes, strict=True) if c == Outcome.OK
            ]
            # What the fast tier holds of these, if anything, is older, whatever its size.
            fast = self._pair.put_fast(stored, replace=True)
            self._pair.count(fast.errors.values())
            self._pair.distrust([stored[place].key for place in fast.errors])
        there = {item.key for item, c in zip(items, outcomes.codes, strict=True) if c == 1}
        self._moves.promote(there - {item.key for item in stored})
        return outcomes

    def _put_back(self, items: Sequence[Item], *, replace: bool) -> Outcomes:
        with self._pair.holds.of(item.key for item in items):
            fast = self._pair.put_fast(items, replace=replace)
            for code, item in zip(fast.codes, items, strict=True):
                if code == Outcome.OK or item.key in self._pair.tally.unwritten:
                    self._moves.write_down(item.key)
        return self._put_below(items, fast, replace=replace) if fast.errors else fast

    def _put_below(self, items: Sequence[Item], fast: Outcomes, *, replace: bool) -> Outcomes:
        """Store in the slow tier what the fast one failed; return what became of each object."""
        codes, errors = list(fast.codes), dict(fast.errors)
        failed = list(fast.errors)
        last = {item.key: place for place, item in enumerate(items) if place not in errors}
        with self._pair.slow_holds.of(items[place].key for place in failed):
            slow = try_put(self._pair.slow, [items[place] for place in failed], replace=replace)
            stored = []
            for at, place in enumerate(failed):
                codes[place] = slow.codes[at]
                error = errors.pop(place)
                if codes[place] == Outcome.FAILED:
                    errors[place] = slow.errors[at]
                    continue
                self._pair.count([error])
                if codes[place] == Outcome.OK:
                    stored.append(place)
            later = {items[place].key for place in stored if last.get(items[place].key, -1) > place}
            newest = list({items[place].key for place in stored} - later)
            with self._pair.holds.of(newest):
                # What waits of these is older than what was just stored, and so is the fast copy.
                self._moves.forget(newest)
                self._pair.distrust(newest)
        for key in later:  # the same call stored a newer one in the fast tier: it goes down again
            self._moves.write_down(key)
        return Outcomes(codes, errors)

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("this tiered store is closed")
        if self._pid != os.getpid():
            raise StoreError(
                f"this tiered store was opened by process {self._pid} and this is a fork of it: "
                "open it anew, by its `opener`"
            )


def tiered(
    fast: Store,
    slow: Store,
    *,
    mode: Mode = "write-through",
    promote_bytes: int = 64 << 20,
    queue_objects: int = 10_000,
    wait_s: float = 30.0,
) -> TieredStore:
    """Return a fast store before a slow one, as one store; see `TieredStore`."""
    return TieredStore(
        fast,
        slow,
        mode=mode,
        promote_bytes=promote_bytes,
        queue_objects=queue_objects,
        wait_s=wait_s,
    )
