"""Prefetching: from stored objects to the arena, where a later load finds them. It has no pool."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from unikv.coverage import pages_needed
from unikv.lane import Lane
from unikv.larder import Larder, Shelf
from unikv.matching import match_bundle
from unikv.orders import Read, ReadDone, ReadPart
from unikv.reports import PrefetchReport
from unikv.siblings import want_of
from unikv.stopwatch import Stopwatch
from unikv.store_call import StoreCall


def prefetch_pages(
    call: StoreCall,
    larder: Larder,
    lanes: Sequence[Lane],
    pages: Sequence[str],
    rows: Sequence[Sequence[int]],
) -> PrefetchReport:
    """Bring what is stored of some pages into the larder, by windows from the head.

    Room is asked for once the store has said what it holds, and given back where something fails.

    Args:
        call: the store.
        larder: where the pages go.
        lanes: how each component is read.
        pages: page hashes in sequence order.
        rows: for each lane the positions that this rank owns.
    """
    watch = Stopwatch()
    with watch.stage("stat"):
        call.gate.check()
        match = match_bundle(call, [want_of(lane) for lane in lanes], pages)
        end = match.pages
    wanted = [_wanted(lane, mine, end) for lane, mine in zip(lanes, rows, strict=True)]
    small = [n for n, lane in enumerate(lanes) if not lane.dense]
    dense = [n for n, lane in enumerate(lanes) if lane.dense]
    done, report = 0, PrefetchReport(wanted=end)
    page_bytes = sum(lanes[n].read.page_bytes for n in dense)
    room = call.guard.arena.size // 2  # the other half is for saves and loads
    window = max(1, room // page_bytes) if page_bytes else max(1, end)
    while done < end and report.stopped is None:
        call.gate.check()
        stop = min(done + window, end)
        some: dict[int, Sequence[int]] = {}
        for n in dense:
            some[n] = [row for row in wanted[n] if done <= row < stop]
        if stop == end:
            some |= {n: wanted[n] for n in small}
        report = _bring(call, larder, lanes, pages, some, report)
        if report.stopped is None:
            report = replace(report, pages=stop)
        done = stop
    watch.add(report.seconds)
    if call.trouble is not None and (end < len(pages) or report.stopped is not None):
        # The store did not answer, which says nothing of what it holds.
        report = replace(report, deferred=True, stopped=report.stopped or call.trouble)
    elif report.stopped is None and match.first_missing is not None:
        report = replace(report, stopped=f"{match.first_missing} is not stored")
    return replace(report, seconds=watch.seconds)


def _wanted(lane: Lane, rows: Sequence[int], end: int) -> Sequence[int]:
    needed = pages_needed(lane.coverage, end, lane.format.namespace.spec.page_tokens)
    return [row for row in rows if row in needed]


def _bring(
    call: StoreCall,
    larder: Larder,
    lanes: Sequence[Lane],
    pages: Sequence[str],
    some: Mapping[int, Sequence[int]],
    so_far: PrefetchReport,
) -> PrefetchReport:
    """Read some rows of each lane into a slot and shelve them; return the report so far."""
    lacking = {
        n: [row for row in rows if not larder.holds(lanes[n].shelf, pages[row])]
        for n, rows in some.items()
    }
    need = sum(lanes[n].read.page_bytes * len(rows) for n, rows in lacking.items())
    slot = call.guard.arena.take(need, need) if need else None
    if slot is None:
        if not need:
            return so_far
        call.guard.meters.count("unikv_arena_full_total", call="prefetch")
        return replace(so_far, deferred=True, stopped=f"the arena has no {need} bytes free")
    try:
        parts: list[ReadPart] = []
        shelves: list[tuple[Lane, list[str], Shelf]] = []
        at = size = 0
        for n, rows in lacking.items():
            lane, plan, mine = lanes[n], lanes[n].read, [pages[row] for row in rows]
            parts.append(ReadPart(lane.passage, slot.start + at, mine))
            shelves.append((lane, mine, Shelf(slot, slot.cut(at, len(rows), plan.page_bytes))))
            at += len(rows) * plan.page_bytes
            if lane.format.codec is None:  # else the answer tells
                size += len(rows) * int((plan.spans.stop - plan.spans.start).sum())
        answer = call.settle(call.begin(Read(parts, verify=True), slot))
        assert isinstance(answer, ReadDone)
        seconds = {s: so_far.seconds.get(s, 0.0) + spent for s, spent in answer.seconds.items()}
        size += answer.coded[0]
        report = replace(so_far, bytes_read=so_far.bytes_read + size, seconds=seconds)
        if answer.error or answer.bad:
            return replace(report, stopped=answer.error or answer.bad[0].reason)
        for lane, mine, shelf in shelves:
            larder.store(lane.shelf, mine, shelf)
        return report
    finally:
        slot.release()
