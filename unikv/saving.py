"""Saving: from a pool to stored objects, one window of pages at a time. It reads no object.

pool → pack → header → store.put
"""

from collections.abc import Sequence

from torch import Tensor

from unikv.arena import Arena
from unikv.damage import DamageLog
from unikv.kernels.reference import pack
from unikv.lane import Lane
from unikv.reports import Failure, SaveReport
from unikv.stopwatch import Stopwatch
from unikv.store import UNKNOWN_SIZE, Item, Outcome, Store


def save_pages(
    lane: Lane,
    store: Store,
    arena: Arena,
    pages: Sequence[str],
    index: Tensor,
    *,
    start: int,
    damaged: DamageLog,
) -> SaveReport:
    """Store the chunks of ``pages`` that this rank writes and the store lacks.

    Args:
        lane: the component and this rank's share of it.
        store: where objects go.
        arena: host memory to pack in.
        pages: page hashes in sequence order.
        index: what ``lane.pool.index`` made of the pages' slots.
        start: position of ``pages[0]`` in its sequence, in pages.
        damaged: keys whose bytes a load found bad; they are replaced.
    """
    watch = Stopwatch()
    plan, form = lane.write, lane.format
    mine = lane.to_write(pages) if plan.chunks else []
    with watch.stage("stat"):
        found = store.stat(plan.keys([pages[i] for i in mine]))
    sizes = [form.object_bytes(chunk) for chunk in plan.chunks]
    todo: list[tuple[int, list[int]]] = []  # position of a page and which of its chunks to store
    for row, i in enumerate(mine):
        there = found[row * len(sizes) : (row + 1) * len(sizes)]
        lacking = [
            c
            for c, size in enumerate(there)
            if size not in (sizes[c], UNKNOWN_SIZE) or form.key(pages[i], plan.chunks[c]) in damaged
        ]
        if lacking:
            todo.append((i, lacking))
    existed = len(found) - sum(len(chunks) for _, chunks in todo)
    stored, written, failed = 0, 0, list[Failure]()

    window = arena.size // plan.page_bytes if todo else 1
    for first in range(0, len(todo), window):
        batch = todo[first : first + window]
        staging = arena.cut(0, len(batch), plan.page_bytes)
        with watch.stage("pack"):
            pack(lane.pool.parts, index[[i for i, _ in batch]], staging, plan.pieces)
        with watch.stage("encode"):
            new, again = list[tuple[int, Item]](), list[tuple[int, Item]]()
            data = staging.view(-1).numpy().data
            for row, (i, chunks) in enumerate(batch):
                for c in chunks:
                    chunk = plan.chunks[c]
                    place = row * plan.page_bytes + plan.place[c] + form.header_bytes
                    payload = data[place : place + chunk.payload_bytes]
                    header, description = form.encode(
                        pages[i],
                        chunk,
                        payload,
                        parent=pages[i - 1] if i else None,
                        page_index=start + i,
                    )
                    item = Item(form.key(pages[i], chunk), (header, payload, description))
                    (again if item.key in damaged else new).append((i, item))
        with watch.stage("put"):
            for some, replace in ((new, False), (again, True)):
                outcomes = store.put([item for _, item in some], replace=replace)
                for n, ((i, item), code) in enumerate(zip(some, outcomes.codes, strict=True)):
                    if code == Outcome.FAILED:
                        failed.append(Failure(item.key, i, str(outcomes.errors[n])))
                    elif code == Outcome.EXISTED:
                        existed += 1
                    else:
                        stored += 1
                        written += item.size
                        damaged.forget(item.key)
    return SaveReport(stored, existed, tuple(failed), written, len(mine), watch.seconds)
