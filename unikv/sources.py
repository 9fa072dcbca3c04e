"""Sources: slots of components that follow another component's. They move no bytes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unikv.draft import derive_slot
from unikv.errors import PoolError
from unikv.lane import Lane
from unikv.pool_index import Slots, as_table


def follow_sources(lanes: Sequence[Lane]) -> list[Lane]:
    """Return the lanes that have a source, each behind its own source; they go in no circle."""
    ready = {lane.name for lane in lanes if lane.component.source is None}
    waiting = [lane for lane in lanes if lane.component.source is not None]
    order: list[Lane] = []
    while waiting:
        next_up = [lane for lane in waiting if lane.component.source in ready]
        order += next_up
        ready |= {lane.name for lane in next_up}
        waiting = [lane for lane in waiting if lane not in next_up]
    return order


def derive_table(lane: Lane, source: Lane, slots: Slots | int) -> Slots | int:
    """Return the slots of ``lane``'s pages, int64 (pages, rows), from those of its source.

    Where a page has as many rows in both pools they are the same slots. Else, as with an indexer
    of one row a page, the source's pages must lie whole, one after another (`derive_slot`). A page
    that the source does not hold has -1.

    Raises:
        PoolError: the source's pages do not lie so.
    """
    if isinstance(slots, int):
        return slots
    table = as_table(slots)
    if not table.numel():
        return table
    rows = source.page_rows
    unheld = torch.zeros(len(table), dtype=torch.bool)
    unheld[list(source.find_unheld(table, write=False))] = True
    if lane.page_rows == rows:
        same = lane.pool.block_tokens == source.pool.block_tokens
        return (table if same else _as_slots(table, rows)).masked_fill(unheld[:, None], -1)
    table = _as_slots(table, rows)
    first = table[:, :1]
    whole = (table == first + torch.arange(rows)).all(1) & (first[:, 0] % rows == 0)
    if (broken := ~(whole | unheld)).any():
        page = int(broken.nonzero()[0])
        raise PoolError(
            f"page {page} of component {source.name!r} begins at slot {int(first[page])} and does "
            f"not fill slots from a multiple of {rows} in order: component {lane.name!r}, with "
            f"{lane.page_rows} rows a page, cannot follow it; want slots of its own"
        )
    derived: Tensor = derive_slot(first, torch.arange(lane.page_rows), rows, lane.page_rows)
    derived[unheld] = -1
    return derived


def _as_slots(table: Tensor, rows: int) -> Tensor:
    """Return slots of all rows of each page, from slots or from a table of blocks."""
    block = rows // table.shape[1] if table.shape[1] and rows % table.shape[1] == 0 else 1
    if block == 1:
        return table
    return (table[:, :, None] * block + torch.arange(block)).flatten(1)
