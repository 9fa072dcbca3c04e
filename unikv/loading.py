"""Loading: from stored objects to the pools, as far as every required component goes.

It writes no object. Small components (windows, state) are read first, for the endpoint that they
can restore; then those of every page, by windows from the head. What fails moves the endpoint
back, and the small ones are read again for the new one. Small ones reach the pool last.
"""

from collections.abc import Sequence

from unikv.catalog import find_gaps
from unikv.coverage import endpoints, greatest, pages_needed
from unikv.reading import Leg, Reader, Share
from unikv.reports import Failure, LoadReport
from unikv.siblings import want_of


def load_pages(reader: Reader, legs: Sequence[Leg]) -> LoadReport:
    """Fill the pools with the greatest prefix that all required components can restore."""
    return _Load(reader, legs).run()


class _Load:
    """One load: what is known of each component so far, and where that lets it end."""

    def __init__(self, reader: Reader, legs: Sequence[Leg]) -> None:
        self.reader = reader
        self.dense = [leg for leg in legs if leg.lane.dense]
        self.small = [leg for leg in legs if leg.lane.required and not leg.lane.dense]
        self.extra = [leg for leg in legs if not (leg.lane.required or leg.lane.dense)]
        self.limit = len(reader.pages)  # no page behind it can be restored
        self.lost: dict[str, dict[int, Failure]] = {leg.lane.name: {} for leg in legs}
        self.held = {leg.lane.name: self._stored(leg) for leg in self.small}
        self.valid = {  # good to which page, as far as is known
            leg.lane.name: min(leg.selection.unheld, default=self.limit) for leg in legs
        }
        self.dropped: dict[str, str] = {}

    def run(self) -> LoadReport:
        done = 0  # pages of the dense components that are in the pool
        while True:
            end = self._end(self.limit)
            shares, whole = self._read_small(end)
            if whole:
                done = self._stream(done, end, sum(share.staging.numel() for share in shares))
                if done >= end and self.limit >= end:
                    break
        with self.reader.watch.stage("unpack"):
            for share in shares:
                share.unpack(end)
        for leg in self.extra:
            self._load_extra(leg, end)
        reader = self.reader
        failure = self._what_ended(end) if end < len(reader.pages) else None
        reason = failure.reason if failure else "no later endpoint is stored"
        return LoadReport(
            pages=end,
            bytes_read=reader.bytes_read,
            bytes_headers=reader.bytes_headers,
            bytes_needed=reader.bytes_needed,
            requests=reader.requests,
            failed=(failure,) if failure else (),
            stopped=(
                f"page {failure.page if failure else end} of {len(reader.pages)}: {reason}"
                if end < len(reader.pages)
                else None
            ),
            seconds=reader.watch.seconds,
            valid={name: min(valid, end) for name, valid in self.valid.items()},
            dropped=self.dropped,
        )

    def _stored(self, leg: Leg) -> set[int]:
        """Return the pages of a small component that are stored, or are other ranks' to restore."""
        rows = leg.selection.rows
        with self.reader.watch.stage("stat"):
            pages = [self.reader.pages[row] for row in rows]
            gaps, _ = find_gaps(self.reader.store, want_of(leg.lane), pages, self.reader.damaged)
        held = set(range(len(self.reader.pages))) - leg.selection.unheld
        for n, key in gaps.items():
            held.discard(rows[n])
            self.lost[leg.lane.name][rows[n]] = Failure(key, rows[n], f"{key} is not stored")
        return held

    def _end(self, limit: int) -> int:
        """Return the greatest endpoint up to ``limit`` that all small components can restore."""
        sets = [
            endpoints(leg.lane.coverage, self.held[leg.lane.name], limit, _page_tokens(leg))
            for leg in self.small
        ]
        return greatest(*sets) if sets else limit

    def _read_small(self, end: int) -> tuple[list[Share], bool]:
        """Read what the small components need for ``end``; forget as held what is not whole."""
        wanted = [pages_needed(leg.lane.coverage, end, _page_tokens(leg)) for leg in self.small]
        if not any(wanted):
            return [], True
        shares, failures = self.reader.read(self.small, wanted, 0)
        for leg, found in zip(self.small, failures, strict=True):
            self.held[leg.lane.name] -= set(found)
            self.lost[leg.lane.name] |= found
        return shares, not any(failures)

    def _stream(self, done: int, end: int, at: int) -> int:
        """Move pages ``done..end`` of the dense components; return how many are in the pool.

        Stops at the first page that a required one lacks, and sets the limit to it.
        """
        while done < end:
            legs = [leg for leg in self.dense if self.valid[leg.lane.name] > done]
            page_bytes = sum(leg.lane.read.page_bytes for leg in legs)
            window = (self.reader.arena.size - at) // page_bytes if page_bytes else end
            batch = range(done, min(done + window, end))
            shares, failures = self.reader.read(legs, [batch] * len(legs), at)
            stop = batch.stop
            for leg, found in zip(legs, failures, strict=True):
                self.lost[leg.lane.name] |= found
                if leg.lane.required:
                    stop = min([stop, *found])
                elif found:
                    self.valid[leg.lane.name] = min(found)
                    self.dropped[leg.lane.name] = found[min(found)].reason
            whole = stop == batch.stop
            settled = stop if whole else self._end(stop)
            with self.reader.watch.stage("unpack"):
                for leg, share in zip(legs, shares, strict=True):
                    share.unpack(min(settled, self.valid[leg.lane.name]))
            done = max(done, settled)
            if not whole:
                self.limit = stop
                break
        return done

    def _load_extra(self, leg: Leg, end: int) -> None:
        """Load what an optional window or state needs for ``end``, or nothing of it."""
        name = leg.lane.name
        wanted = pages_needed(leg.lane.coverage, end, _page_tokens(leg))
        reason = ""
        if absent := leg.selection.unheld & set(wanted):
            reason = f"page {min(absent)} has no slots"
        elif wanted:
            [share], [found] = self.reader.read([leg], [wanted], 0)
            if found:
                reason = found[min(found)].reason
            else:
                with self.reader.watch.stage("unpack"):
                    share.unpack(end)
        self.valid[name] = 0 if reason else end
        if reason:
            self.dropped[name] = reason

    def _what_ended(self, end: int) -> Failure | None:
        """Return what kept the load from going further than ``end``."""
        ended = [
            self.lost[leg.lane.name][self.limit]
            for leg in self.dense
            if leg.lane.required and self.limit in self.lost[leg.lane.name]
        ]
        if end < self.limit:  # the small ones could restore less than the dense ones
            ended = [
                failure
                for leg in self.small
                for row, failure in sorted(self.lost[leg.lane.name].items())
                if row in pages_needed(leg.lane.coverage, self.limit, _page_tokens(leg))
            ]
        return ended[0] if ended else None


def _page_tokens(leg: Leg) -> int:
    return leg.lane.format.namespace.spec.page_tokens
