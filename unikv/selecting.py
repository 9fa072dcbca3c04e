"""Selecting: checks pages and slots of a call and says what each lane moves. It moves nothing."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from unikv.errors import PoolError
from unikv.lane import Lane, Selection
from unikv.pages import check_pages
from unikv.pool_index import Slots
from unikv.pool_sharing import check_blocks, find_shared
from unikv.sources import derive_table, follow_sources

Tables: TypeAlias = Slots | int | Mapping[str, Slots | int]
"""Slots of one component, or by component name; a number is the slot of a state for all pages."""


class Selector:
    """The lanes of a client, in a fixed order.

    Args:
        lanes: one a component.
        several: whether the client's user named components, and names them in slots.
    """

    def __init__(self, lanes: Sequence[Lane], *, several: bool) -> None:
        self._lanes = {lane.name: lane for lane in lanes}
        self._several = several
        self._own = sorted(name for name, lane in self._lanes.items() if not lane.component.source)
        self._names = frozenset(self._own)
        self._shared = find_shared(lanes)

    def select(self, pages: Sequence[str], slots: Tables, *, write: bool) -> list[Selection]:
        """Return what each lane moves of ``pages``, once all is checked.

        Raises:
            KeyFormatError: a text that is no page hash.
            PoolError: slots that do not fit the pages or the pool.
        """
        check_pages(pages)
        own, lanes = self._own, self._lanes
        if isinstance(slots, Mapping):
            tables = dict(slots)
        elif self._several and len(own) > 1:
            raise PoolError(f"slots for components {own}: want a mapping by component name")
        else:
            tables = {own[0]: slots}
        if tables.keys() != self._names:
            raise PoolError(f"slots for components {sorted(tables, key=str)!r:.200}: want {own}")
        for name in own:
            tables[name] = _check_table(lanes[name], tables[name], len(pages))
        for lane in follow_sources([*lanes.values()]):
            source = lanes[str(lane.component.source)]
            tables[lane.name] = derive_table(lane, source, tables[source.name])
        selections = [_select(lanes[n], tables[n], len(pages), write=write) for n in lanes]
        check_blocks([*lanes.values()], selections, self._shared)
        return selections


def _check_table(lane: Lane, slots: Slots | int, pages: int) -> Slots | int:
    """Return slots, a number as Python's own; refuse what the checks of a table would trip over."""
    if isinstance(slots, Tensor):
        if slots.layout is torch.strided and not slots.is_nested:
            return slots
        given = "nested" if slots.is_nested else str(slots.layout)
        raise PoolError(
            f"slots as a {given} tensor: want a dense one, a row a page ({_explain(lane, pages)})"
        )
    if isinstance(slots, bool):
        raise PoolError(f"slots {slots}: want a table, a row a page ({_explain(lane, pages)})")
    return int(slots) if isinstance(slots, np.integer) else slots


def _select(lane: Lane, slots: Slots | int, pages: int, *, write: bool) -> Selection:
    try:
        return lane.select(slots, pages, write=write)
    except PoolError as error:
        raise PoolError(f"{error} ({_explain(lane, pages)})") from error


def _explain(lane: Lane, pages: int) -> str:
    """Return what a lane's slots are, for whoever gave others."""
    pool, rows, tokens = lane.pool, lane.page_rows, lane.format.namespace.spec.page_tokens
    blocks, block = pool.block_count * lane.shard.ranks, pool.block_tokens
    some = f"shape ({pages}, {rows})"
    if blocks:  # else the rank has none of the component's layers, and any slot will do
        some += f", each a slot from 0 to {blocks * block - 1}"
    if block > 1:
        some += f", or shape ({pages}, {rows // block}), each a block from 0 to {blocks - 1}"
    held = "-1 throughout a page stands for one that is not held"
    if lane.dense and lane.required:
        held = "-1 stands for a page that is not held, and this component must hold every page"
    return (
        f"slots of component {lane.name!r} for {pages} pages of {tokens} tokens: int64 or int32, "
        f"{some}; {held}"
    )
