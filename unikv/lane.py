"""Lane: one component on one rank, with all that a transfer needs. It does no I/O.

A lane is where identity, grid, topology and pool meet; client, save and load only follow it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from unikv.component import Component
from unikv.errors import PoolError
from unikv.geometry import Box
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.paged import PagedCache
from unikv.planner import Plan, plan_read, plan_write
from unikv.pool_index import Slots, as_table
from unikv.sharding import Shard, local_row, owner
from unikv.tags import BLAKE3_KEYED
from unikv.topology import Rank

Writers: TypeAlias = Literal["striped", "first"]


class Selection(NamedTuple):
    """The pages of a call that a lane holds, and where they lie in its pool."""

    rows: Sequence[int]  # positions in the call's pages, ascending
    places: Tensor  # what `PagedCache.index` made of their slots, a row a page


@dataclass(frozen=True, eq=False)
class Lane:
    """One component's namespace as bytes (``format``), this rank's box of it and its pool."""

    name: str
    format: ObjectFormat
    box: Box
    pool: PagedCache
    shard: Shard  # which pages this rank owns
    replica: tuple[int, int]  # index and count among the ranks that hold the same bytes
    writers: Writers

    @classmethod
    def of(
        cls, name: str, component: Component, rank: Rank, *, writers: Writers, tag_key: bytes | None
    ) -> "Lane":
        """Check the pool against the rank's box and return the lane.

        Raises:
            PoolError: no pool, or one that does not hold the rank's box.
            TopologyError: the rank's sizes do not fit the spec.
            SpecError: the namespace's tags need a ``tag_key`` and there is none.
        """
        if component.pool is None:
            raise PoolError(f"component {name!r} has no pool: a client moves bytes, a catalog asks")
        spec = component.namespace.spec
        box = rank.box(spec)
        component.pool.check(spec, box)
        return cls(
            name,
            _format(component.namespace, tag_key),
            box,
            component.pool,
            rank.shard(spec, component.sharded),
            rank.replica(spec, component.sharded),
            writers,
        )

    def through(self, sibling: Namespace, tag_key: bytes | None) -> "Lane":
        """Return the same pool and box read by the grid of another namespace of the family."""
        return replace(self, format=_format(sibling, tag_key))

    @cached_property
    def read(self) -> Plan:
        """The copies that fill this rank's box of a page."""
        return plan_read(self.format, self.box)

    @cached_property
    def write(self) -> Plan:
        """The chunks that this rank owns. Raises `GridError` when it owns one only in part."""
        return plan_write(self.format, self.box)

    @property
    def page_rows(self) -> int:
        """Rows of a page in this rank's pool."""
        return self.format.namespace.spec.parts[0].rows // self.box.phase.count

    def select(self, slots: Slots, pages: int, *, write: bool) -> Selection:
        """Return which of ``pages`` pages this rank owns and where they lie in its pool.

        Where pages are dealt out over ranks, ``slots`` are logical (see `sharding`).

        Raises:
            PoolError: slots that do not fit the pages or the pool.
        """
        table = as_table(slots)
        if len(table) != pages:
            raise PoolError(f"{pages} pages, but slots of component {self.name!r} for {len(table)}")
        rows: Sequence[int] = range(pages)
        if self.shard.ranks > 1 and pages:
            rows, table = self._owned(table)
        return Selection(rows, self.pool.index(table, self.page_rows, write=write))

    def _owned(self, table: Tensor) -> tuple[list[int], Tensor]:
        """Return the rows of a logical table that this rank owns, as rows of its own pool."""
        entries = table.shape[1]  # slots of a page or its blocks: a page is that many of either
        widths = sorted({self.page_rows, self.page_rows // self.pool.block_tokens}, reverse=True)
        if self.pool.layers and entries not in widths:  # also where this rank owns none of them
            raise PoolError(
                f"slots of shape {tuple(table.shape)}: want "
                f"{' or '.join(f'(pages, {width})' for width in widths)}"
            )
        if (table < 0).any():
            raise PoolError(f"logical slot {int(table.min())}: want 0 or more")
        split = (table // entries != table[:, :1] // entries).any(1).nonzero().flatten().tolist()
        if split:
            raise PoolError(
                f"page {split[0]} lies in two logical pages of {entries} slots: want each page "
                "whole in one, since its rank follows from it"
            )
        owners = owner(table[:, 0], entries, self.shard.ranks)
        rows: list[int] = (owners == self.shard.rank).nonzero().flatten().tolist()
        return rows, local_row(table[rows], entries, self.shard.ranks)

    def writes(self, page: str) -> bool:
        """Tell whether, of the replicas of the same bytes, this one is to write ``page``."""
        index, count = self.replica
        return index == (int(page[:16], 16) % count if self.writers == "striped" else 0)


def _format(namespace: Namespace, tag_key: bytes | None) -> ObjectFormat:
    return ObjectFormat.of(namespace, tag_key if namespace.tags == BLAKE3_KEYED else None)
