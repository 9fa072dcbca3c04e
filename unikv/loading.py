"""Loading: from stored objects to the pools, one window of pages at a time. It writes no object.

store.get → verify → unpack → pool
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from unikv.arena import Arena
from unikv.kernels.reference import unpack
from unikv.lane import Lane, Selection
from unikv.recent import RecentKeys
from unikv.reports import Failure, LoadReport
from unikv.stopwatch import Stopwatch
from unikv.store import Outcome, Outcomes, Span, Store


class Share(NamedTuple):
    """One component's part of a window: the pages of it that this rank owns, and their staging."""

    lane: Lane
    rows: Sequence[int]  # positions in the window, ascending
    places: Tensor  # what `PagedCache.index` made of theirs, a row a page
    staging: Tensor  # uint8 (pages, page_bytes)


def load_pages(
    lanes: Sequence[Lane],
    store: Store,
    arena: Arena,
    pages: Sequence[str],
    selections: Sequence[Selection],
    *,
    verify: bool,
    damaged: RecentKeys,
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
            shares = cut_window(lanes, arena, selections, done, len(batch))
            spans = [span for share in shares for span in window_spans(share, batch)]
        with watch.stage("get"):
            outcomes = store.get(spans)
        requests += len(spans)
        bytes_read += sum(span.stop - span.start for span in spans)
        for lane, rows, _, _ in shares:
            bytes_headers += len(rows) * len(lane.read.chunks) * lane.format.header_bytes
            bytes_needed += len(rows) * lane.read.needed
        with watch.stage("verify"):
            good, failure = good_prefix(shares, batch, spans, outcomes, verify, damaged)
        with watch.stage("unpack"):
            for lane, rows, places, staging in shares:
                if count := bisect_left(rows, good):
                    unpack(lane.pool.parts, places[:count], staging[:count], lane.read.pieces)
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
    lanes: Sequence[Lane], arena: Arena, selections: Sequence[Selection], first: int, pages: int
) -> list[Share]:
    """Cut a window of ``pages`` pages from position ``first`` into a share for each lane."""
    shares, start = [], 0
    for lane, (rows, places) in zip(lanes, selections, strict=True):
        begin, end = bisect_left(rows, first), bisect_left(rows, first + pages)
        staging = arena.cut(start, end - begin, lane.read.page_bytes)
        start += staging.numel()
        mine = [row - first for row in rows[begin:end]]
        shares.append(Share(lane, mine, places[begin:end], staging))
    return shares


def window_spans(share: Share, pages: Sequence[str]) -> list[Span]:
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


def good_prefix(
    shares: Sequence[Share],
    pages: Sequence[str],
    spans: Sequence[Span],
    outcomes: Outcomes,
    verify: bool,  # noqa: FBT001
    damaged: RecentKeys,
) -> tuple[int, Failure | None]:
    """Return how many leading pages were read and are whole, and what ended the prefix.

    What was read behind the first failure is checked too, so that one save heals all of it.
    """
    good = len(pages)
    failure: Failure | None = None
    at = 0  # where the spans of a lane's page begin
    for share in shares:
        width = len(share.lane.read.spans.key)
        for n, row in enumerate(share.rows):
            bad = next((i for i in range(at, at + width) if outcomes.codes[i] != Outcome.OK), None)
            at += width
            found: Failure | None = None
            if bad is not None:
                found = _unread(bad, spans, outcomes)
            elif verify:
                found = _verify_page(share, n, pages[row], damaged)
            if found and row < good:
                good, failure = row, found
    return good, failure


def _unread(i: int, spans: Sequence[Span], outcomes: Outcomes) -> Failure:
    key = spans[i].key
    missing = outcomes.codes[i] == Outcome.MISS
    return Failure(key, 0, f"{key} is not stored" if missing else str(outcomes.errors[i]))


def _verify_page(share: Share, row: int, page: str, damaged: RecentKeys) -> Failure | None:
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
