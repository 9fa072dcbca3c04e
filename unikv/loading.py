"""Loading: from stored objects to the pools, as far as every required component goes.

It writes no object. Small components (windows, state) are read first, for the endpoint that they
can restore; then those of every page, by windows from the head. What fails moves the endpoint
back, and the small ones are read again for the new one, before anything is unpacked. Small ones
reach the pool last.
"""

from collections.abc import Sequence
from typing import NamedTuple

from unikv.arena import ALIGN
from unikv.coverage import endpoints, greatest, pages_needed
from unikv.lane import Lane
from unikv.matching import find_gaps
from unikv.reading import Batch, Leg, Reader, Share
from unikv.reports import Failure, LoadReport
from unikv.siblings import want_of

MOST_ERRORS = 4
"""Reads of windows and states that a store may fail in one load before the load gives up on them.

What is missing or damaged is not counted: that is looked for further ahead, however often.
"""


WINDOW_BYTES = 8 << 20
WINDOWS = 4
"""A load is cut into so many windows, unless they would be smaller than `WINDOW_BYTES`."""


def load_pages(reader: Reader, legs: Sequence[Leg]) -> LoadReport:
    """Fill the pools with the greatest prefix that all required components can restore."""
    return _Load(reader, legs).run()


class _Window(NamedTuple):
    """Pages of the dense components that are read together."""

    batch: Batch
    stop: int  # the page behind its last
    half: int  # of the room: 0 or 1


class _Load:
    """One load: what is known of each component so far, and where that lets it end."""

    def __init__(self, reader: Reader, legs: Sequence[Leg]) -> None:
        self.reader = reader
        self.dense = [leg for leg in legs if leg.lane.dense]
        self.small = [leg for leg in legs if leg.lane.required and not leg.lane.dense]
        self.extra = [leg for leg in legs if not (leg.lane.required or leg.lane.dense)]
        pages = len(reader.pages)
        self.limit = pages  # no page behind it can be restored
        self.valid = {leg.lane.name: pages for leg in legs}  # good to which page, as far as known
        self.dropped: dict[str, str] = {}
        self.errors = 0  # reads of small components that the store failed
        for lane, selection in self.dense:
            if selection.unheld:  # of an optional one
                first = min(selection.unheld)
                self._drop(lane.name, first, f"page {first}: {_no_slots(lane)}")
        self.lost: dict[str, dict[int, Failure]] = {leg.lane.name: {} for leg in legs}
        self.held = {leg.lane.name: self._stored(leg) for leg in self.small}
        self.at = sum(  # bytes of the arena that are for the small ones
            leg.lane.read.page_bytes * min(pages, leg.lane.window_pages) for leg in self.small
        )
        # Two windows share what is left, so that one is read while the other is unpacked. Where
        # small ones may still move the end back, one takes it all: less is unpacked in vain.
        room = (reader.slot.size if reader.slot else 0) - self.at
        page_bytes = sum(leg.lane.read.page_bytes for leg in self.dense)
        half = room // 2 // ALIGN * ALIGN
        much = room >= 2 * WINDOW_BYTES or room < pages * page_bytes
        self.two = not self.small and much and half >= page_bytes
        self.half_bytes = half if self.two else room

    def run(self) -> LoadReport:
        end, small = self._settle()
        window = self._begin_dense(0, end, 0)
        while window is not None:
            shares = self._finish_dense(window)
            if self.limit < end:
                end, small = self._settle()
            if self.two:  # the next window is on its way while this one is unpacked
                after = self._begin_dense(window.stop, end, 1 - window.half)
                self._unpack(shares, end)
            else:
                self._unpack(shares, end)
                after = self._begin_dense(window.stop, end, 0)
            window = after
        self._unpack(small, end)
        for leg in self.extra:
            self._load_extra(leg, end)
        return self._report(end)

    def _unpack(self, shares: Sequence[Share], end: int) -> None:
        """Copy what is verified into the pools, unless the load was cancelled."""
        with self.reader.call.gate, self.reader.watch.stage("unpack"):
            for share in shares:
                share.unpack(min(end, self.valid[share.lane.name]))

    def _report(self, end: int) -> LoadReport:
        reader, pages = self.reader, len(self.reader.pages)
        failure, stopped = self._what_ended(end) if end < pages else (None, None)
        return LoadReport(
            pages=end,
            bytes_read=reader.bytes_read,
            bytes_headers=reader.bytes_headers,
            bytes_needed=reader.bytes_needed,
            prefetched=reader.prefetched,
            requests=reader.requests,
            failed=(failure,) if failure else (),
            stopped=stopped,
            seconds=reader.watch.seconds,
            valid={name: min(valid, end) for name, valid in self.valid.items()},
            dropped={n: why for n, why in self.dropped.items() if self.valid[n] < end},
        )

    def _stored(self, leg: Leg) -> set[int]:
        """Return the pages of a small component that are stored, or are other ranks' to restore."""
        rows = leg.selection.rows
        with self.reader.watch.stage("stat"):
            pages = [self.reader.pages[row] for row in rows]
            # What was damaged when last read is read again: somebody may have healed it.
            gaps, _ = find_gaps(self.reader.call, want_of(leg.lane), pages)
        held = set(range(len(self.reader.pages))) - leg.selection.unheld
        for n, key in gaps.items():
            held.discard(rows[n])
            self.lost[leg.lane.name][rows[n]] = Failure(
                key, rows[n], f"{key} is not stored whole", "missing"
            )
        return held

    def _settle(self) -> tuple[int, list[Share]]:
        """Read the small components for the greatest endpoint up to the limit that they restore."""
        while True:
            if self.errors > MOST_ERRORS:  # the store is failing: trying on would take for ever
                self.held = {name: set() for name in self.held}
            sets = [
                endpoints(
                    leg.lane.coverage, self.held[leg.lane.name], self.limit, _page_tokens(leg)
                )
                for leg in self.small
            ]
            end = greatest(*sets) if sets else self.limit
            wanted = [pages_needed(leg.lane.coverage, end, _page_tokens(leg)) for leg in self.small]
            if not any(wanted):
                return end, []
            shares, failures = self.reader.read(self.small, wanted, 0)
            for leg, found in zip(self.small, failures, strict=True):
                self.held[leg.lane.name] -= set(found)
                self.lost[leg.lane.name] |= found
                self.errors += any(failure.kind == "error" for failure in found.values())
            if not any(failures):
                return end, shares

    def _begin_dense(self, done: int, end: int, half: int) -> "_Window | None":
        """Start to read pages from ``done`` on of the dense components, as many as fit a half."""
        legs = [leg for leg in self.dense if self.valid[leg.lane.name] > done]
        if done >= end or not legs:
            return None
        most = end
        if self.reader.slot is not None:
            page_bytes = sum(leg.lane.read.page_bytes for leg in legs)
            most = self.half_bytes // page_bytes if page_bytes else end
            if self.two:
                most = min(most, max(WINDOW_BYTES // max(1, page_bytes), -(-end // WINDOWS)))
        stop = min(done + most, end)
        wanted = [range(done, min(stop, self.valid[leg.lane.name])) for leg in legs]
        batch = self.reader.begin(legs, wanted, self.at + half * self.half_bytes)
        return _Window(batch, stop, half)

    def _finish_dense(self, window: "_Window") -> list[Share]:
        """Wait for a window. Where a required component lacks a page, that is the limit now."""
        shares, failures = self.reader.finish(window.batch)
        for leg, found in zip(window.batch.legs, failures, strict=True):
            self.lost[leg.lane.name] |= found
            if found and leg.lane.required:
                self.limit = min(self.limit, *found)
            elif found:
                first = found[min(found)]
                self._drop(leg.lane.name, first.page, first.reason)
        return shares

    def _drop(self, name: str, page: int, reason: str) -> None:
        """Note that an optional component is good to ``page`` alone, and why."""
        self.valid[name] = page
        self.dropped[name] = reason

    def _load_extra(self, leg: Leg, end: int) -> None:
        """Load what an optional window or state needs for ``end``, or nothing of it."""
        lane, selection = leg
        wanted = pages_needed(lane.coverage, end, _page_tokens(leg))
        if absent := selection.unheld & set(wanted):
            self._drop(lane.name, 0, f"page {min(absent)}: {_no_slots(lane)}")
        elif wanted:
            shares, [found] = self.reader.read([leg], [wanted], 0)
            if found:
                self._drop(lane.name, 0, found[min(found)].reason)
            else:
                self._unpack(shares, end)

    def _what_ended(self, end: int) -> tuple[Failure | None, str]:
        """Return what kept the load from going further than ``end``, and a sentence on it."""
        total = len(self.reader.pages)
        asked: list[tuple[Leg, Sequence[int]]] = [
            (leg, [end]) for leg in self.dense if leg.lane.required
        ]
        if end < self.limit:  # the small ones could restore less than the dense ones
            asked = [
                (leg, pages_needed(leg.lane.coverage, self.limit, _page_tokens(leg)))
                for leg in self.small
            ]
        for (lane, selection), pages in asked:
            for page in pages:
                if failure := self.lost[lane.name].get(page):
                    return failure, f"page {page} of {total}: {failure.reason}"
                if page in selection.unheld:
                    return None, f"page {page} of {total}: {_no_slots(lane)}"
        return None, f"page {end} of {total}: no later endpoint is stored"


def _no_slots(lane: Lane) -> str:
    return f"component {lane.name!r} has no slots for it"


def _page_tokens(leg: Leg) -> int:
    return leg.lane.format.namespace.spec.page_tokens
