"""Lane: one component on one rank, with all that a transfer needs. It does no I/O.

A lane is where identity, grid, topology and pool meet; client, save and load only follow it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from unikv.component import Component
from unikv.errors import PoolError
from unikv.geometry import Box
from unikv.objects import ObjectFormat
from unikv.paged import PagedCache
from unikv.planner import Plan, plan_read, plan_write
from unikv.tags import BLAKE3_KEYED
from unikv.topology import Rank

Writers: TypeAlias = Literal["striped", "first"]


@dataclass(frozen=True, eq=False)
class Lane:
    """One component's namespace as bytes (``format``), this rank's box of it and its pool."""

    name: str
    format: ObjectFormat
    box: Box
    pool: PagedCache
    replica: tuple[int, int]  # index and count among the ranks that hold the same box
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
        keyed = component.namespace.tags == BLAKE3_KEYED
        form = ObjectFormat.of(component.namespace, tag_key if keyed else None)
        return cls(name, form, box, component.pool, rank.replica(spec), writers)

    @cached_property
    def read(self) -> Plan:
        """The copies that fill this rank's box of a page."""
        return plan_read(self.format, self.box)

    @cached_property
    def write(self) -> Plan:
        """The chunks that this rank owns. Raises `GridError` when it owns one only in part."""
        return plan_write(self.format, self.box)

    def to_write(self, pages: Sequence[str]) -> list[int]:
        """Return the positions of the pages that this replica is to write."""
        index, count = self.replica
        if self.writers == "first":
            return list(range(len(pages))) if index == 0 else []
        if count == 1:
            return list(range(len(pages)))
        return [i for i, page in enumerate(pages) if int(page[:16], 16) % count == index]
