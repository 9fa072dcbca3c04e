"""Loading: from stored objects to the pools, one window of pages at a time. It writes no object.

store.get → verify → unpack → pool
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from unikv.arena import Arena
from unikv.damage import DamageLog
from unikv.kernels.reference import unpack
from unikv.lane import Lane
from unikv.reports import Failure, LoadReport
from unikv.stopwatch import Stopwatch
from unikv.store import Outcome, Outcomes, Span, Store


class Share(NamedTuple):
    """One component's part of a window: its lane, its slots and its cut of the arena."""

    lane: Lane
    slots: Tensor  # what `PagedCache.index` made of them, a row a page
    staging: Tensor  # uint8 (pages, page_bytes)


def load_pages(
    lanes: Sequence[Lane],
    store: Store,
    arena: Arena,
    pages: Sequence[str],
    indices: Sequence[Tensor],
    *,
    verify: bool,
    damaged: DamageLog,
) -> LoadReport:
    """Fill the pools with the longest whole prefix of ``pages`` that all lanes can restore.

    A page is unpacked only after all its chunks are in the arena and, with ``verify``, checked.
    """
    watch = Stopwatch()
    page_bytes = sum(lane.read.page_bytes for lane in lanes)
    window = arena.size // page_bytes if page_bytes else max(1, len(pages))
    done = requests = bytes_read = bytes_headers = bytes_needed = 0
    failure: Failure | None = None
    while done < len(pages) and failure is None:
        batch = pages[done : done + window]
        with watch.stage("plan"):
            shares = cut_window(lanes, arena, indices, done, len(batch))
            spans = [span for share in shares for span in window_spans(share, batch)]
        with watch.stage("get"):
            outcomes = store.get(spans)
        requests += len(spans)
        bytes_read += sum(span.stop - span.start for span in spans)
        bytes_headers += len(batch) * sum(
            lane.format.header_bytes * len(lane.read.chunks) for lane in lanes
        )
        bytes_needed += len(batch) * sum(lane.read.needed for lane in lanes)
        with watch.stage("verify"):
            good, failure = good_prefix(shares, batch, spans, outcomes, verify, damaged)
        with watch.stage("unpack"):
            for lane, slots, staging in shares:
                if good and lane.read.pieces:
                    unpack(lane.pool.parts, slots[:good], staging[:good], lane.read.pieces)
        if failure:
            failure = failure._replace(page=done + good)
        done += good
    return LoadReport(
        pages=done,
        bytes_read=bytes_read,
        bytes_headers=bytes_headers,
        bytes_needed=bytes_needed,
        requests=requests,
        failed=(failure,) if failure else (),
        stopped=f"page {failure.page} of {len(pages)}: {failure.reason}" if failure else None,
        seconds=watch.seconds,
    )


def cut_window(
    lanes: Sequence[Lane], arena: Arena, indices: Sequence[Tensor], first: int, pages: int
) -> list[Share]:
    """Cut a window of ``pages`` pages from position ``first`` into a share for each lane."""
    shares, start = [], 0
    for lane, index in zip(lanes, indices, strict=True):
        staging = arena.cut(start, pages, lane.read.page_bytes)
        start += pages * lane.read.page_bytes
        shares.append(Share(lane, index[first : first + pages], staging))
    return shares


def window_spans(share: Share, pages: Sequence[str]) -> list[Span]:
    """Return the byte ranges that fill the share's staging, page by page."""
    plan = share.lane.read
    keys = plan.keys(pages)
    columns = plan.expand(len(pages))
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


def good_prefix(
    shares: Sequence[Share],
    pages: Sequence[str],
    spans: Sequence[Span],
    outcomes: Outcomes,
    verify: bool,  # noqa: FBT001
    damaged: DamageLog,
) -> tuple[int, Failure | None]:
    """Return how many leading pages were read and are whole, and what ended the prefix.

    What was read behind the first failure is checked too, so that one save heals all of it.
    """
    good = len(pages)
    failure: Failure | None = None
    firsts, at = [], 0  # where each lane's spans begin
    for share in shares:
        firsts.append(at)
        at += len(pages) * len(share.lane.read.spans.key)
    for row, page in enumerate(pages):
        for share, first in zip(shares, firsts, strict=True):
            width = len(share.lane.read.spans.key)
            cells = range(first + row * width, first + (row + 1) * width)
            bad = next((i for i in cells if outcomes.codes[i] != Outcome.OK), None)
            found: Failure | None = None
            if bad is not None:
                found = _unread(bad, spans, outcomes)
            elif verify:
                found = _verify_page(share, row, page, damaged)
            if found and failure is None:
                good, failure = row, found
    return good, failure


def _unread(i: int, spans: Sequence[Span], outcomes: Outcomes) -> Failure:
    key = spans[i].key
    missing = outcomes.codes[i] == Outcome.MISS
    return Failure(key, 0, f"{key} is not stored" if missing else str(outcomes.errors[i]))


def _verify_page(share: Share, row: int, page: str, damaged: DamageLog) -> Failure | None:
    """Check all that was read of a page, remember what is bad, and return the first of it."""
    plan, form = share.lane.read, share.lane.format
    data = share.staging[row].numpy().data
    failure: Failure | None = None
    for c, chunk in enumerate(plan.chunks):
        size = form.header_bytes + plan.slabs[c] * chunk.slab_bytes
        read = data[plan.place[c] : plan.place[c] + size]
        damage = form.check(page, chunk, read, plan.first_slab[c], plan.slabs[c])
        if damage:
            damaged.remember(damage.key)
            failure = failure or Failure(damage.key, 0, str(damage))
    return failure
