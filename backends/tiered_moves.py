"""Moves: objects on their way between two tiers, behind the caller's back. They answer no call."""

from collections.abc import Iterable, Sequence
from itertools import islice
from time import monotonic

from unikv.backends.tiered_calls import try_stat
from unikv.backends.tiered_carry import Carried, carry
from unikv.backends.tiered_pair import Pair
from unikv.backends.tiered_queue import CarryQueue
from unikv.store import Span

_PROMOTIONS = 1000  # objects that may wait to be copied to the fast tier
_BATCH = 256


class Moves:
    """Down: what is to be written to the slow tier. Up: what is to be copied to the fast one."""

    def __init__(
        self, pair: Pair, promote_bytes: int, queue_objects: int, *, slow_rules: bool
    ) -> None:
        self._pair = pair
        self._slow_rules = slow_rules  # where tiers differ, the slow one is right
        self._promote_bytes = promote_bytes
        self.down = CarryQueue(self._carry_down, self._told_down, queue_objects)
        self.up = CarryQueue(self._carry_up, self._told_up, _PROMOTIONS)

    def write_down(self, key: str) -> None:
        """Have an object of the fast tier written to the slow one."""
        if not self.down.ask(key):
            self._pair.tally.left_unwritten(key, "too many objects wait to be written")

    def promote(self, keys: Iterable[str]) -> None:
        """Have objects of the slow tier copied to the fast one, which lacks them or has others."""
        if not self._promote_bytes or self._pair.rest.on:
            return
        dropped = sum(not self.up.ask(key) for key in keys)
        with self._pair.tally.lock:
            self._pair.tally.promotions_dropped += dropped

    def only_in_fast(self, spans: Sequence[Span]) -> list[bool]:
        """Tell of spans that the fast tier failed which ones the slow tier cannot answer.

        It holds an older object, or none, where the newer one waits to be written, or where the
        fast tier's object is whole and ends before the range does.
        """
        waits = self._pair.tally.unwritten
        sizes = self._pair.stat_fast([span.key for span in spans])
        return [
            key in waits or key in self.down or (size is not None and 0 <= size < stop)
            for (key, _, stop, _), size in zip(spans, sizes, strict=True)
        ]

    def forget(self, keys: Iterable[str]) -> None:
        """Move objects no more, since they were removed or stored elsewhere."""
        for queue in (self.down, self.up):
            queue.forget(keys)
        self._pair.tally.forget(keys)

    def flush(self, wait_s: float) -> None:
        """Write what waits, and once more what could not be written, for at most so long."""
        until = monotonic() + wait_s
        self.down.wait(wait_s)
        for key in list(self._pair.tally.unwritten):
            self.down.ask(key)
        self.down.wait(max(0.0, until - monotonic()))

    def settle(self) -> None:
        """Write to the slow tier what the fast one alone holds."""
        tally = self._pair.tally
        unnamed = tally.unwritten_unnamed  # among what is listed now
        entries = iter(self._pair.fast.list())
        while batch := {entry.key: entry.key in tally.unwritten for entry in islice(entries, _BATCH)}:
            with self._pair.holds.of(batch):
                done = carry(self._pair.fast, self._pair.slow, batch)
            for carried in done:
                if carried.fate in ("gone", "there"):
                    tally.forget([carried.key])
                else:
                    self._told_down(carried)
        tally.settled(unnamed)

    def close(self, wait_s: float) -> None:
        """Write what waits, at most so many seconds, and move nothing more."""
        until = monotonic() + wait_s
        self.down.wait(wait_s)
        for key in self.down.close(max(0.0, until - monotonic())):
            why = "the store was closed before it was written"
            self._pair.tally.left_unwritten(key, why)
        self.up.close(max(0.0, until - monotonic()))

    def _carry_down(self, batch: Sequence[str]) -> list[Carried]:
        with self._pair.holds.of(batch):
            # What the slow tier holds of the same size may be older all the same.
            wanted = dict.fromkeys(self.down.wanted(batch), True)
            return carry(self._pair.fast, self._pair.slow, wanted)

    def _told_down(self, carried: Carried) -> None:
        tally = self._pair.tally
        if carried.fate in ("carried", "there"):
            tally.wrote(carried.key)
        elif carried.fate == "gone":
            tally.left_fast(carried.key)
        else:
            tally.left_unwritten(carried.key, str(carried.error))

    def _carry_up(self, batch: Sequence[str]) -> list[Carried]:
        pair = self._pair
        with pair.holds.of(batch):
            done = carry(
                pair.slow,
                pair.fast,
                {key: key in pair.stale for key in self.up.wanted(batch)},
                heal=self._slow_rules,
                most_bytes=self._promote_bytes,
            )
            keys = [carried.key for carried in done if carried.fate == "carried"]
            # Another process may have removed or changed one since it was read.
            slow, fast = try_stat(pair.slow, keys)[0], try_stat(pair.fast, keys)[0]
            changed = [k for k, was, now in zip(keys, fast, slow, strict=True) if was != now]
            pair.distrust(changed)
            pair.stale.difference_update(set(keys) - set(changed))
            return done

    def _told_up(self, carried: Carried) -> None:
        tally = self._pair.tally
        with tally.lock:
            if carried.fate == "carried":
                tally.promoted += 1
            elif carried.fate == "large":
                tally.promotions_dropped += 1
            elif carried.fate == "failed":
                tally.promotion_errors += 1
                tally.promotion_error = str(carried.error)
