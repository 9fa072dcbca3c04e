"""Lane: one component on one rank, with all that a transfer needs. It does no I/O.

A lane is where identity, grid, topology and pool meet; client, save and load only follow it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from unikv.component import Component
from unikv.coverage import Coverage, Endpoints, EveryPage, pages_needed, pages_to_store
from unikv.errors import PoolError
from unikv.geometry import Box
from unikv.kernels.reference import Route
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.paged import PagedCache
from unikv.passage import Passage
from unikv.planner import Plan
from unikv.pool_index import Slots, as_table
from unikv.sharding import Shard, local_row, owner
from unikv.topology import Rank

Writers: TypeAlias = Literal["striped", "first"]


class Selection(NamedTuple):
    """The pages of a call that a lane moves, and where they lie in its pool."""

    rows: Sequence[int]  # positions in the call's pages, ascending
    places: Tensor  # what `PagedCache.index` made of their slots, a row a page
    unheld: frozenset[int] = frozenset()  # positions that this component has no slots for

    def keep(self, wanted: Collection[int]) -> "Selection":
        """Return the selection less the rows that are not in ``wanted``."""
        kept = [n for n, row in enumerate(self.rows) if row in wanted]
        if len(kept) == len(self.rows):
            return self
        return Selection([self.rows[n] for n in kept], take(self.places, kept), self.unheld)


def take(places: Tensor, kept: Sequence[int]) -> Tensor:
    """Return some rows of places, ascending; by numpy, which need not let go of the lock for it."""
    first, count = (kept[0], len(kept)) if kept else (0, 0)
    if not count or kept[-1] - first == count - 1:
        return torch.from_numpy(places.numpy()[first : first + count])
    return torch.from_numpy(places.numpy()[[*kept]])


@dataclass(frozen=True, eq=False)
class Lane:
    """One component's namespace as bytes, this rank's box of it (its ``passage``) and its pool."""

    name: str
    passage: Passage
    pool: PagedCache
    shard: Shard  # which pages this rank owns
    replica: tuple[int, int]  # index and count among the ranks that hold the same bytes
    writers: Writers
    component: Component

    @classmethod
    def of(
        cls,
        name: str,
        component: Component,
        rank: Rank,
        *,
        model_layers: int,
        writers: Writers,
        tag_key: bytes | None,
    ) -> "Lane":
        """Check the pool against the rank's box and return the lane.

        Raises:
            PoolError: no pool, or one that does not hold the rank's box.
            TopologyError: the rank's sizes do not fit the spec.
            SpecError: the namespace's tags need a ``tag_key`` and there is none.
        """
        if component.pool is None:
            raise PoolError(f"component {name!r} has no pool: a client moves bytes, a catalog asks")
        if not isinstance(component.pool, PagedCache):
            raise PoolError(
                f"pool of component {name!r} is a {type(component.pool).__name__}: want a "
                "PagedCache, as PagedCache.slots(k, v) makes it from the engine's tensors"
            )
        spec = component.namespace.spec
        box = rank.box(spec, model_layers)
        component.pool.check(spec, box)
        return cls(
            name,
            Passage.of(component.namespace, box, tag_key),
            component.pool,
            rank.shard(spec, component.sharded),
            rank.replica(spec, component.sharded),
            writers,
            component,
        )

    def through(self, sibling: Namespace, tag_key: bytes | None) -> "Lane":
        """Return the same pool and box read by the grid of another namespace of the family."""
        return replace(self, passage=Passage.of(sibling, self.box, tag_key))

    @property
    def format(self) -> ObjectFormat:
        """The namespace's objects."""
        return self.passage.format

    @property
    def box(self) -> Box:
        """This rank's share of every page."""
        return self.passage.box

    @property
    def read(self) -> Plan:
        """The copies that fill this rank's box of a page."""
        return self.passage.read

    @property
    def write(self) -> Plan:
        """The chunks that this rank owns. Raises `GridError` when it owns one only in part."""
        return self.passage.write

    @cached_property
    def read_route(self) -> Route:
        """The way of pages that `read` brings, between staging and the pool."""
        return Route.of(self.pool.parts, self.read.pieces)

    @cached_property
    def write_route(self) -> Route:
        """The way of pages that `write` takes. Raises what it does."""
        return Route.of(self.pool.parts, self.write.pieces)

    @property
    def shelf(self) -> str:
        """What prefetched pages are kept under: the component and the namespace read."""
        return f"{self.name} {self.format.namespace.digest}"

    @property
    def page_rows(self) -> int:
        """Rows of a page in this rank's pool."""
        return self.format.namespace.spec.parts[0].rows // self.box.phase.count

    @property
    def coverage(self) -> Coverage:
        """Which of the component's pages an endpoint needs."""
        return self.component.coverage

    @property
    def dense(self) -> bool:
        """Whether an endpoint needs every page before it."""
        return isinstance(self.coverage, EveryPage)

    @property
    def required(self) -> bool:
        """Whether a page is of no use without the component."""
        return self.component.need == "required"

    @property
    def window_pages(self) -> int:
        """Pages that one endpoint needs at once; 1 where every page is needed, one by one."""
        if self.dense:
            return 1
        spec = self.format.namespace.spec
        return max(1, len(pages_needed(self.coverage, 2**20, spec.page_tokens)))

    def to_store(
        self, selection: Selection, endpoints: Collection[int] | None, pages: int
    ) -> Selection:
        """Return what of a selection to store so that ``endpoints`` can be restored; None: all.

        Raises:
            PoolError: two of the pages name one state: a slot holds the state of one.
            SpecError: an endpoint that the pages do not reach.
        """
        wanted: Collection[int] = range(pages)
        if endpoints is not None:
            page_tokens = self.format.namespace.spec.page_tokens
            needed = pages_to_store(self.coverage, endpoints, pages, page_tokens)
            wanted = wanted if self.dense else frozenset(needed)
        kept = selection.keep(wanted)
        if isinstance(self.coverage, Endpoints):
            slots = kept.places.flatten().tolist()
            if len(set(slots)) < len(slots):
                again = next(slot for slot in slots if slots.count(slot) > 1)
                raise PoolError(
                    f"component {self.name!r} would store slot {again} as the state of "
                    f"{slots.count(again)} pages: want the slot of one, and -1 for pages whose "
                    "state is gone (or endpoints= to say which page it is of)"
                )
        return kept._replace(unheld=frozenset(row for row in selection.unheld if row in wanted))

    def select(self, slots: Slots | int, pages: int, *, write: bool) -> Selection:
        """Return which of ``pages`` pages this rank moves and where they lie in its pool.

        Where pages are dealt out over ranks, ``slots`` are logical (see `sharding`). A row of -1
        is a page that the component does not hold. For `Endpoints` one slot may stand for all
        pages, since only the state of one is restored.

        Raises:
            PoolError: slots that do not fit the pages or the pool.
        """
        state = isinstance(self.coverage, Endpoints)
        if isinstance(slots, int) and not state:
            raise PoolError(
                f"slot {slots} for all pages of component {self.name!r}: want a row a page, since "
                "each has a place of its own"
            )
        table = as_table([[slots]] * pages if isinstance(slots, int) else slots)
        if len(table) != pages:
            raise PoolError(f"{pages} pages, but slots of component {self.name!r} for {len(table)}")
        unheld = self.find_unheld(table, write=write)
        if unheld and self.dense and self.required:
            raise PoolError(
                f"page {min(unheld)} has no slots in component {self.name!r}: want them, since "
                "no later page is of use without it"
            )
        rows = [row for row in range(pages) if row not in unheld]
        table = table[rows] if unheld else table
        if self.shard.ranks > 1 and rows:
            owned, table = self._owned(table)
            rows = [rows[n] for n in owned]
        # Two pages in one place are wrong both ways; of states only one is moved.
        places = self.pool.index(table, self.page_rows, unique=not state)
        return Selection(rows, places, unheld)

    def find_unheld(self, table: Tensor, *, write: bool) -> frozenset[int]:
        """Return the rows of a table that hold nothing: -1, or the engine's null slot.

        Raises:
            PoolError: a null slot to ``write`` to, or a page that has slots and -1.
        """
        null = self.component.null_slot
        if not table.numel() or (null is None and table.numpy().min() >= 0):
            return frozenset()
        nothing = table == -1
        if null is not None:
            named = (table == null).any(1)
            if write and named.any():
                raise PoolError(
                    f"page {int(named.nonzero()[0])} of component {self.name!r} names slot {null}, "
                    "the null slot: want a slot to load into, or -1 for none"
                )
            nothing = nothing | named[:, None]
        some, every = nothing.any(1), nothing.all(1)
        if (some & ~every).any():
            page = int((some & ~every).nonzero()[0])
            raise PoolError(
                f"page {page} of component {self.name!r} has slots and -1: want all or none"
            )
        return frozenset(every.nonzero().flatten().tolist())

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
