"""Reading: one batch of pages from the store into the arena, verified. It touches no pool.

plan → store.get → verify
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from unikv.arena import Arena
from unikv.kernels.reference import unpack
from unikv.lane import Lane, Selection
from unikv.recent import RecentKeys
from unikv.reports import Failure
from unikv.stopwatch import Stopwatch
from unikv.store import Outcome, Outcomes, Span, Store


class Leg(NamedTuple):
    """One component's part of a load: its lane and the pages that it moves."""

    lane: Lane
    selection: Selection


class Share(NamedTuple):
    """One component's part of a batch: the pages of it that are in the arena."""

    lane: Lane
    rows: Sequence[int]  # positions in the call's pages, ascending
    places: Tensor  # what `PagedCache.index` made of their slots, a row a page
    staging: Tensor  # uint8 (pages, page_bytes)

    def unpack(self, stop: int) -> None:
        """Copy the pages at positions below ``stop`` into the pool."""
        if count := bisect_left(self.rows, stop):
            pieces = self.lane.read.pieces
            unpack(self.lane.pool.parts, self.places[:count], self.staging[:count], pieces)


@dataclass(slots=True)
class Reader:
    """Reads batches of one call and keeps its counts."""

    store: Store
    arena: Arena
    pages: Sequence[str]
    verify: bool
    damaged: RecentKeys
    watch: Stopwatch = field(default_factory=Stopwatch)
    requests: int = 0
    bytes_read: int = 0
    bytes_headers: int = 0
    bytes_needed: int = 0

    def read(
        self, legs: Sequence[Leg], wanted: Sequence[Collection[int]], at: int
    ) -> tuple[list[Share], list[dict[int, Failure]]]:
        """Read the wanted positions of each leg to ``at`` bytes into the arena and on.

        Returns:
            Each leg's share, and its failures by position. What else was read is checked too, so
            that one save heals all that is bad.
        """
        with self.watch.stage("plan"):
            shares: list[Share] = []
            for (lane, selection), positions in zip(legs, wanted, strict=True):
                rows, places, _ = selection.keep(positions)
                staging = self.arena.cut(at, len(rows), lane.read.page_bytes)
                at += staging.numel()
                shares.append(Share(lane, rows, places, staging))
            spans = [span for share in shares for span in _spans(share, self.pages)]
        with self.watch.stage("get"):
            outcomes = self.store.get(spans)
        self.requests += len(spans)
        self.bytes_read += sum(span.stop - span.start for span in spans)
        for lane, rows, _, _ in shares:
            self.bytes_headers += len(rows) * len(lane.read.chunks) * lane.format.header_bytes
            self.bytes_needed += len(rows) * lane.read.needed
        with self.watch.stage("verify"):
            first, failures = 0, []
            for share in shares:
                failures.append(self._failures(share, spans, outcomes, first))
                first += len(share.rows) * len(share.lane.read.spans.key)
        return shares, failures

    def _failures(
        self, share: Share, spans: Sequence[Span], outcomes: Outcomes, first: int
    ) -> dict[int, Failure]:
        found: dict[int, Failure] = {}
        width = len(share.lane.read.spans.key)
        codes = outcomes.codes
        for n, row in enumerate(share.rows):
            cells = range(first + n * width, first + (n + 1) * width)
            bad = next((i for i in cells if codes[i] != Outcome.OK), None)
            failure: Failure | None = None
            if bad is not None:
                key, error = spans[bad].key, outcomes.errors.get(bad)
                if codes[bad] == Outcome.MISS:
                    failure = Failure(key, row, f"{key} is not stored", "missing")
                else:
                    failure = Failure(key, row, str(error or f"{key} could not be read"))
            elif self.verify:
                failure = self._verify(share, n, row)
            if failure:
                found[row] = failure
        return found

    def _verify(self, share: Share, n: int, row: int) -> Failure | None:
        """Check all that was read of a page, remember what is bad, and return the first of it."""
        plan, form = share.lane.read, share.lane.format
        data = share.staging[n].numpy().data
        failure: Failure | None = None
        for c, chunk in enumerate(plan.chunks):
            size = form.header_bytes + plan.slabs[c] * chunk.slab_bytes
            read = data[plan.place[c] : plan.place[c] + size]
            damage = form.check(self.pages[row], chunk, read, plan.first_slab[c], plan.slabs[c])
            if damage:
                self.damaged.remember(damage.key)
                failure = failure or Failure(damage.key, row, str(damage), "damaged")
            elif len(self.damaged):  # somebody else has healed it
                self.damaged.forget(form.key(self.pages[row], chunk))
        return failure


def _spans(share: Share, pages: Sequence[str]) -> list[Span]:
    """Return the byte ranges that fill the share's staging, page by page."""
    plan = share.lane.read
    keys = plan.keys([pages[row] for row in share.rows])
    columns = plan.expand(len(share.rows))
    data = share.staging.view(-1).numpy().data
    return [
        Span(keys[key], start, stop, (data[place : place + stop - start],))
        for key, start, stop, place in zip(
            columns.key.tolist(),
            columns.start.tolist(),
            columns.stop.tolist(),
            columns.place.tolist(),
            strict=True,
        )
    ]
