"""Reading: batches of pages from the store into a call's slot, verified. It touches no pool.

larder → slot ← Read order: plan → store.get → verify
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from unikv.arena import Slot
from unikv.geometry import Interval
from unikv.guard import Pending
from unikv.kernels.staging import Staging
from unikv.lane import Lane, Selection, take
from unikv.larder import Held, give_back
from unikv.orders import Bad, Read, ReadDone, ReadPart
from unikv.recent import RecentKeys
from unikv.reports import Failure
from unikv.stopwatch import Stopwatch
from unikv.store_call import StoreCall


class Leg(NamedTuple):
    """One component's part of a load: its lane and the pages that it moves."""

    lane: Lane
    selection: Selection


class Share(NamedTuple):
    """One component's part of a batch: the pages of it that are in the arena."""

    lane: Lane
    rows: Sequence[int]  # positions in the call's pages, ascending
    places: Tensor  # what `PagedCache.index` made of their slots, a row a page
    staging: Staging | None  # of as many pages; None where they have no bytes here

    def unpack(self, stop: int) -> None:
        """Copy the pages at positions below ``stop`` into the pool."""
        if (count := bisect_left(self.rows, stop)) and self.staging is not None:
            places = take(self.places, range(count))
            self.lane.read_route.unpack(places, self.staging.rows(0, count))


class Batch(NamedTuple):
    """Pages under way: what is in the arena already, and what an order is bringing."""

    legs: Sequence[Leg]
    ready: Sequence[Share]  # from the larder
    coming: Sequence[Share]  # one a leg
    pending: Pending | None  # None where nothing is coming
    layers: Interval | None = None


@dataclass(slots=True, eq=False)
class Reader:
    """Reads batches of one call into its slot, and keeps its counts. Close it."""

    call: StoreCall
    slot: Slot | None  # None where all is prefetched
    pages: Sequence[str]
    verify: bool
    damaged: RecentKeys
    held: Mapping[str, Held]  # by component, what was prefetched of these pages
    watch: Stopwatch = field(default_factory=Stopwatch)
    requests: int = 0
    bytes_read: int = 0
    bytes_headers: int = 0
    bytes_needed: int = 0
    prefetched: int = 0  # pages of components, taken from the larder
    under_way: list[Pending] = field(default_factory=list)

    def begin(
        self,
        legs: Sequence[Leg],
        wanted: Sequence[Collection[int]],
        at: int,
        layers: Interval | None = None,
    ) -> Batch:
        """Start to read the wanted positions of each leg to ``at`` bytes into the slot and on."""
        self.call.gate.check()
        ready: list[Share] = []
        coming: list[Share] = []
        parts: list[ReadPart] = []
        for (lane, selection), positions in zip(legs, wanted, strict=True):
            rows, places, _ = selection.keep(positions)
            held = self.take(lane, rows, places) if layers is None else []
            ready += held
            if taken := {row for share in held for row in share.rows}:
                kept = [n for n, row in enumerate(rows) if row not in taken]
                rows, places = [rows[n] for n in kept], take(places, kept)
            size = len(rows) * lane.read.page_bytes
            staging = None
            if self.slot is not None:
                staging = self.slot.cut(at, len(rows), lane.read.page_bytes)
                start = self.slot.start + at
                pages = [self.pages[row] for row in rows]
                parts.append(ReadPart(lane.passage, start, pages, layers))
            at += size
            coming.append(Share(lane, rows, places, staging))
        if not any(part.pages for part in parts):
            return Batch(legs, ready, coming, None)
        pending = self.call.begin(Read(parts, self.verify), self.slot)
        self.under_way.append(pending)
        return Batch(legs, ready, coming, pending, layers)

    def take(self, lane: Lane, rows: Sequence[int], places: Tensor) -> list[Share]:
        """Return what was prefetched of some rows, a share for each run of its shelves."""
        held = self.held.get(lane.name, {})
        found = {n: held[row] for n, row in enumerate(rows) if row in held}
        self.prefetched += len(found)
        shares: list[Share] = []
        for run in _runs(found):
            shelf, first = found[run[0]]
            staging = shelf.staging.rows(first, first + len(run))
            shares.append(Share(lane, [rows[n] for n in run], take(places, run), staging))
        return shares

    def finish(self, batch: Batch) -> tuple[list[Share], list[dict[int, Failure]]]:
        """Wait for a batch.

        Returns:
            Its shares, and each leg's failures by position. What else was read is checked too, so
            that one save heals all that is bad.
        """
        failures: list[dict[int, Failure]] = [{} for _ in batch.legs]
        if batch.pending is not None:
            with self.watch.stage("wait"):
                answer = self.call.settle(batch.pending)
            self.under_way.remove(batch.pending)
            assert isinstance(answer, ReadDone)
            self.watch.add(answer.seconds)
            self.bytes_read += answer.coded[0]
            self.requests += answer.coded[1]
            failures = self._failures(batch, answer)
            for share, found in zip(batch.coming, failures, strict=True):
                lost = sum(failure.kind != "damaged" for failure in found.values())
                self._count(share.lane, len(share.rows) - lost, batch.layers)
        return [*batch.ready, *batch.coming], failures

    def read(
        self, legs: Sequence[Leg], wanted: Sequence[Collection[int]], at: int
    ) -> tuple[list[Share], list[dict[int, Failure]]]:
        """Read the wanted positions of each leg, and wait; see `begin` and `finish`."""
        return self.finish(self.begin(legs, wanted, at))

    def close(self) -> None:
        """Let go of the slot, and of all that is under way or borrowed."""
        for pending in self.under_way:
            pending.abandon()
        give_back(self.held.values())
        if self.slot is not None:
            self.slot.release()

    def _count(self, lane: Lane, pages: int, layers: Interval | None) -> None:
        """Count what was read of so many pages."""
        plan = lane.read
        columns = plan.expand(1, layers)
        if lane.format.codec is None:  # else the answer tells
            self.requests += pages * len(columns.key)
            self.bytes_read += pages * int((columns.stop - columns.start).sum())
        if layers is None:
            self.bytes_headers += pages * len(plan.chunks) * lane.format.header_bytes
            self.bytes_needed += pages * plan.needed

    def _failures(self, batch: Batch, answer: ReadDone) -> list[dict[int, Failure]]:
        found: list[dict[int, Failure]] = []
        by_part: dict[int, list[Bad]] = {}
        for bad in answer.bad:
            by_part.setdefault(bad.part, []).append(bad)
        for n, (lane, rows, _, _) in enumerate(batch.coming):
            if answer.error is not None:
                error, tails = answer.error, lane.read.key_tails
                asked = rows if tails else ()  # where this rank holds no bytes none are lost
                found.append(
                    {row: Failure(self.pages[row] + tails[0], row, error) for row in asked}
                )
                continue
            lost = {
                rows[bad.page]: Failure(bad.key, rows[bad.page], bad.reason, bad.kind)
                for bad in by_part.get(n, ())
            }
            found.append(lost)
            if self.verify and len(self.damaged):
                self._forget_healed(lane, rows, lost, answer.damaged)
        for key in answer.damaged:
            self.damaged.remember(key)
        self.call.guard.accounts.damaged([*answer.damaged])
        return found

    def _forget_healed(
        self,
        lane: Lane,
        rows: Sequence[int],
        lost: dict[int, Failure],
        damaged: Sequence[str],
    ) -> None:
        """Forget what was damaged once and is good now: somebody else has healed it."""
        bad = frozenset(damaged)
        checked = [row for row in rows if row not in lost or lost[row].kind == "damaged"]
        for key in lane.read.keys([self.pages[row] for row in checked]):
            if key not in bad:
                self.damaged.forget(key)


def _runs(found: Held) -> Iterator[list[int]]:
    """Cut ascending positions where two neighbours do not lie side by side on one shelf."""
    run: list[int] = []
    for n in sorted(found):
        if run:
            (last, row), (shelf, at) = found[run[-1]], found[n]
            if last is not shelf or at != row + 1:
                yield run
                run = []
        run.append(n)
    if run:
        yield run
