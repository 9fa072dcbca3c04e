"""Saving: from a pool to stored objects, one window of pages at a time. It reads no object.

pool → pack → header → store.put
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from unikv.arena import Arena
from unikv.kernels.reference import pack
from unikv.lane import Lane, Selection
from unikv.recent import RecentKeys
from unikv.reports import Failure, SaveReport
from unikv.stopwatch import Stopwatch
from unikv.store import UNKNOWN_SIZE, Item, Outcome, Store


class Lack(NamedTuple):
    """A page of which this rank is to store some chunks."""

    row: int  # in the selection
    at: int  # position in the call's pages
    chunks: Sequence[int]  # positions in the plan's chunks


@dataclass(slots=True)
class _Tally:
    stored: int = 0
    existed: int = 0
    written: int = 0
    failed: list[Failure] = field(default_factory=list)


def save_pages(
    lane: Lane,
    store: Store,
    arena: Arena,
    pages: Sequence[str],
    selection: Selection,
    *,
    start: int,
    damaged: RecentKeys,
    left: RecentKeys,
) -> SaveReport:
    """Store the chunks of ``pages`` that this rank is to write and the store lacks.

    Args:
        lane: the component and this rank's share of it.
        store: where objects go.
        arena: host memory to pack in.
        pages: page hashes in sequence order.
        selection: which of the pages this rank holds, and where.
        start: position of ``pages[0]`` in its sequence, in pages.
        damaged: keys whose bytes a load found bad; they are replaced.
        left: component and page of what this client was asked for before and left to another
            replica.
    """
    watch, tally = Stopwatch(), _Tally()
    plan = lane.write
    with watch.stage("stat"):
        lacks, tally.existed, count = find_lacks(lane, store, pages, selection.rows, damaged, left)
    window = arena.size // plan.page_bytes if lacks else 1
    for first in range(0, len(lacks), window):
        batch = lacks[first : first + window]
        staging = arena.cut(0, len(batch), plan.page_bytes)
        with watch.stage("pack"):
            rows = [lack.row for lack in batch]
            pack(lane.pool.parts, selection.places[rows], staging, plan.pieces)
        with watch.stage("encode"):
            data = staging.view(-1).numpy().data
            items = [
                (lack.at, item)
                for row, lack in enumerate(batch)
                for item in encode_page(lane, pages, lack, data[row * plan.page_bytes :], start)
            ]
        with watch.stage("put"):
            fresh = [(at, item) for at, item in items if item.key not in damaged]
            again = [(at, item) for at, item in items if item.key in damaged]
            _put(store, fresh, tally, damaged, replace=False)
            _put(store, again, tally, damaged, replace=True)
    return SaveReport(
        stored=tally.stored,
        existed=tally.existed,
        failed=tuple(tally.failed),
        bytes_written=tally.written,
        pages=count,
        unheld=len(selection.unheld),
        seconds=watch.seconds,
    )


def find_lacks(
    lane: Lane,
    store: Store,
    pages: Sequence[str],
    rows: Sequence[int],
    damaged: RecentKeys,
    left: RecentKeys,
) -> tuple[list[Lack], int, int]:
    """Return what to store, how many objects are there already, and of how many pages.

    Replicas of the same bytes share pages out. One also writes another's page when it is missing
    and either this client was asked for it before, or a later page of the path is stored: so a
    replica that never saves costs one more save of the path, not the prefix.
    """
    plan = lane.write
    if not plan.chunks:
        return [], 0, 0
    mine = {at: lane.writes(pages[at]) for at in rows}
    asked = [at for at in rows if mine[at] or lane.writers == "striped"]
    keys = plan.keys([pages[at] for at in asked])
    sizes = store.stat(keys)
    wanted = [lane.format.object_bytes(chunk) for chunk in plan.chunks]
    row_of = {at: row for row, at in enumerate(rows)}
    lacks: list[Lack] = []
    last_whole = -1
    existed = count = 0
    for n, at in enumerate(asked):
        cells = range(n * len(wanted), (n + 1) * len(wanted))
        chunks = [
            c
            for c, cell in enumerate(cells)
            if sizes[cell] not in (wanted[c], UNKNOWN_SIZE) or keys[cell] in damaged
        ]
        if not chunks:
            last_whole = at
        if mine[at]:
            count += 1
            existed += len(wanted) - len(chunks)
        if chunks:
            lacks.append(Lack(row_of[at], at, chunks))
    # A client's components share `left`, and each leaves pages to other replicas by itself.
    names = {at: f"{lane.name} {pages[at]}" for at in asked if not mine[at]}
    todo = [k for k in lacks if mine[k.at] or k.at < last_whole or names[k.at] in left]
    for name in names.values():
        left.remember(name)
    return todo, existed, count


def encode_page(
    lane: Lane, pages: Sequence[str], lack: Lack, data: memoryview, start: int
) -> list[Item]:
    """Return the objects of the chunks that a page lacks; ``data`` begins at its staging."""
    plan, form, at = lane.write, lane.format, lack.at
    items = []
    for c in lack.chunks:
        chunk = plan.chunks[c]
        place = plan.place[c] + form.header_bytes
        payload = data[place : place + chunk.payload_bytes]
        header, description = form.encode(
            pages[at],
            chunk,
            payload,
            parent=pages[at - 1] if at else None,
            page_index=start + at,
        )
        items.append(Item(form.key(pages[at], chunk), (header, payload, description)))
    return items


def _put(
    store: Store,
    items: Sequence[tuple[int, Item]],
    tally: _Tally,
    damaged: RecentKeys,
    *,
    replace: bool,
) -> None:
    outcomes = store.put([item for _, item in items], replace=replace)
    for n, ((at, item), code) in enumerate(zip(items, outcomes.codes, strict=True)):
        if code == Outcome.FAILED:
            tally.failed.append(Failure(item.key, at, str(outcomes.errors.get(n) or "not stored")))
        elif code == Outcome.EXISTED:
            tally.existed += 1
        else:
            tally.stored += 1
            tally.written += item.size
            damaged.forget(item.key)
