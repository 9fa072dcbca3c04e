"""Moves: objects on their way between two tiers, behind the caller's back. They answer no call.

Who writes to the slow tier, or reads what is to be promoted, holds the keys in `Pair.slow_holds`;
who changes the fast tier holds them in `Pair.holds`, for no longer than the fast tier takes, so
that a put there never waits for the slow tier. Who wants both takes `slow_holds` first.

A move holds its keys in `slow_holds` and watches them in `holds`. What a put touched meanwhile is
not believed: what was read of it may be of two versions, so it is not copied; where it was copied
already, it is older than what was put, and is carried once more. Who deletes, or puts
to the slow tier, waits for the move, which thus cannot bring an older version afterwards.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from time import monotonic

from unikv.backends.tiered_calls import try_delete, try_stat
from unikv.backends.tiered_carry import Carried, carry, look
from unikv.backends.tiered_holds import Watch
from unikv.backends.tiered_pair import Pair
from unikv.backends.tiered_queue import CarryQueue
from unikv.errors import StoreError
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
        sizes = self._pair.stat_fast([span.key for span in spans])
        return [
            self.waits(key) or (size is not None and 0 <= size < stop)
            for (key, _, stop, _), size in zip(spans, sizes, strict=True)
        ]

    def waits(self, key: str) -> bool:
        """Return whether an object of the fast tier is newer than what the slow one has."""
        return not self._slow_rules and (key in self._pair.tally.unwritten or key in self.down)

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
        while batch := [entry.key for entry in islice(entries, _BATCH)]:
            with self._pair.slow_holds.of(batch), self._pair.holds.watch(batch) as watch:
                # Older versions that the fast tier could not remove are not its objects.
                wanted = {k: k in tally.unwritten for k in batch if k not in self._pair.stale}
                done = self._write_down(wanted, watch, heal=not self._slow_rules)
                with self._pair.holds.of(batch, own=watch):  # nobody changes one while it is told
                    for carried in _since(done, watch):
                        self._settled(carried)
        tally.settled(unnamed)

    def close(self, wait_s: float) -> None:
        """Write what waits, at most so many seconds, and move nothing more."""
        until = monotonic() + wait_s
        self.down.wait(wait_s)
        for key in self.down.close(max(0.0, until - monotonic())):
            why = "the store was closed before it was written"
            self._pair.tally.left_unwritten(key, why)
        self.up.close(max(0.0, until - monotonic()))

    def _settled(self, carried: Carried) -> None:
        if carried.fate == "changed":
            self.write_down(carried.key)
        elif carried.fate in ("gone", "there"):
            self._pair.tally.forget([carried.key])
        else:
            self._told_down(carried)

    def _carry_down(self, batch: Sequence[str]) -> list[Carried]:
        with self._pair.slow_holds.of(batch), self._pair.holds.watch(batch) as watch:
            # What the slow tier holds of the same size may be older all the same.
            wanted = dict.fromkeys(self.down.wanted(batch), True)
            return _since(self._write_down(wanted, watch), watch)

    def _write_down(
        self, keys: Mapping[str, bool], watch: Watch, *, heal: bool = True
    ) -> list[Carried]:
        """Carry objects to the slow tier, and see whether the fast one has them still.

        Another process may have removed one, from both tiers, since it was read: it must not come
        back. One that was evicted meanwhile looks the same.
        """
        fast, slow = self._pair.fast, self._pair.slow
        done = {
            carried.key: carried
            for carried in carry(fast, slow, keys, heal=heal, changed=watch.touched)
        }
        wrote = [key for key, carried in done.items() if carried.fate == "carried"]
        sizes, lacking = look(fast, wrote)
        for key, size in sizes.items():
            if size != done[key].size:
                done[key] = Carried(key, "failed", _passing(f"{key!r}: it changed meanwhile"))
        gone = {one.key for one in lacking if one.fate == "gone" and one.key not in watch.touched}
        if gone:
            try_delete(slow, list(gone))
            back, _ = look(fast, list(gone))  # put anew before we removed it, perhaps
            for key in gone:
                error = _passing(f"{key!r}: it was removed and put anew meanwhile")
                done[key] = Carried(key, "failed", error) if key in back else Carried(key, "gone")
        return list(done.values())

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
        with pair.slow_holds.of(batch), pair.holds.watch(batch) as watch:
            done = carry(
                pair.slow,
                pair.fast,
                {key: key in pair.stale for key in self.up.wanted(batch) if not self.waits(key)},
                heal=self._slow_rules,
                most_bytes=self._promote_bytes,
                changed=watch.touched,
                hold=lambda keys: pair.holds.of(keys, own=watch),
            )
            sizes = {carried.key: carried.size for carried in done if carried.fate == "carried"}
            if not sizes:
                return _since(done, watch)
            # Another process may have removed or changed one since it was read.
            now = dict(zip(sizes, try_stat(pair.slow, list(sizes))[0], strict=True))
            with pair.holds.of(sizes, own=watch):
                ours = [key for key in sizes if key not in watch.touched]
                changed = [key for key in ours if now[key] != sizes[key]]
                pair.distrust(changed)
                pair.stale.difference_update(set(ours) - set(changed))
            return _since(done, watch)

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


def _since(done: Sequence[Carried], watch: Watch) -> list[Carried]:
    """Return what became of objects, now that somebody may have put others."""
    return [Carried(one.key, "changed") if one.key in watch.touched else one for one in done]


def _passing(text: str) -> StoreError:
    error = StoreError(text)
    error.retryable = True
    return error
