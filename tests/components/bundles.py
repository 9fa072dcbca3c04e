"""Bundles: ranks whose pools hold a model's components or poison, and stores of what they saved.

Pools have slots that nobody names; all is poison but for what was put in or loaded. Where context
ranks share pages out, slots are logical, and a page lies with its owner alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tests.components.bundle_content import Bytes, Holding, Model, holding, share, sharers, tensors
from unikv import Client, Component, KVSpec, Namespace, PagedCache, Topology, page_hashes
from unikv.backends.memory import MemoryStore
from unikv.reports import LoadReport, SaveReport
from unikv.store import Store
from unikv.topology import Rank

Table: TypeAlias = NDArray[np.int64]

POISON = 0xA5
GUARDS = 3  # pages of slots in every pool that nobody names
STAGING = 32 << 20  # more than any load here takes


@dataclass(eq=False)
class Party:
    """One rank at work: pools by component, where pages lie in them, and its client."""

    world: "World"
    rank: Rank
    held: dict[str, Holding]
    tables: dict[str, Table]  # (pages, rows of a page), as a call takes them
    memory: dict[str, list[Bytes]]  # by tensor: [layer, slot, axis 0, byte]
    client: Client = field(init=False)

    def put(self, name: str, pages: Iterable[int], into: Sequence[Bytes] | None = None) -> None:
        """Write the rank's share of pages into its pool, or into another of that shape."""
        shares = share(self.world.model, name, self.held[name])
        for memory, mine in zip(into or self.memory[name], shares, strict=True):
            for page in set(pages) & self.owned(name):
                memory[:, self.places(name, page)] = mine[:, page]

    def owned(self, name: str) -> set[int]:
        """Return the pages that this rank keeps: all, or those of its turn."""
        one, table = self.world.model.caches[name], self.tables[name]
        ranks = sharers(one, self.rank)
        return {
            p for p in range(len(table)) if table[p][0] // one.rows % ranks == self.rank.cp % ranks
        }

    def places(self, name: str, page: int) -> Table:
        """Return the rows of a page in this rank's pool."""
        one, slots = self.world.model.caches[name], self.tables[name][page]
        ranks = sharers(one, self.rank)
        return np.asarray(slots // one.rows // ranks * one.rows + slots % one.rows, dtype=np.int64)

    def fill(self) -> "Party":
        for name in self.memory:
            self.put(name, range(self.world.model.pages))
        return self

    def poison(self) -> "Party":
        for memory in self.memory.values():
            for part in memory:
                part.fill(POISON)
        return self

    def slots(self, pages: slice = slice(None), **others: Any) -> dict[str, Any]:
        """Return what a call takes: a table for each component that has slots of its own."""
        own = [name for name, one in self.world.model.caches.items() if one.source is None]
        return {name: torch.from_numpy(self.tables[name][pages].copy()) for name in own} | others

    def save(self, slots: Mapping[str, Any] | None = None, **options: Any) -> SaveReport:
        report = self.client.save(self.world.path, slots or self.slots(), **options)
        assert report.ok, report.failed
        return report

    def load(self, **slots: Any) -> LoadReport:
        return self.client.load(self.world.path, self.slots(**slots))

    def holds(self, wanted: Mapping[str, Collection[int]], loose: range = range(0)) -> list[str]:
        """Return the components whose pool has anything but these pages in it.

        Of components of every page, each page in ``loose`` may be there, whole, or not.
        """
        caches = self.world.model.caches
        mays = {name: loose if caches[name].rule.kind == "every" else range(0) for name in caches}
        return [name for name in caches if not self._holds(name, wanted[name], mays[name])]

    def _holds(self, name: str, pages: Collection[int], loose: range) -> bool:
        memory = self.memory[name]
        there = set(pages)
        for page in set(loose) & self.owned(name) - there:
            slots = self.places(name, page)
            if any((part[:, slots] != POISON).any() for part in memory):
                there.add(page)
        right = [np.full_like(part, POISON) for part in memory]
        self.put(name, there, right)
        return all(map(np.array_equal, memory, right))


@dataclass(frozen=True, eq=False)
class World:
    """A model, its namespaces and a path of pages."""

    model: Model

    @cached_property
    def path(self) -> list[str]:
        tokens = self.model.pages * self.model.page_tokens
        return page_hashes(range(5, 5 + tokens), self.model.page_tokens)

    @cached_property
    def namespaces(self) -> dict[str, Namespace]:
        return {
            name: Namespace(
                spec=one.spec,
                weights="unversioned",
                model="bundle",
                rope="none",
                component=name,
                **one.fields,
            )
            for name, one in self.model.caches.items()
        }

    def components(
        self, pools: Mapping[str, PagedCache] | None = None, **others: Mapping[str, Any]
    ) -> dict[str, Component]:
        """Return the components; ``others`` are fields by name, as null_slot={"swa": 0}."""
        return {
            name: Component(
                self.namespaces[name],
                pools[name] if pools else None,
                one.sharded,
                **{
                    "need": one.need,
                    "coverage": one.coverage,
                    "source": one.source,
                    "packed": one.packed,
                    **{field: names[name] for field, names in others.items() if name in names},
                },
            )
            for name, one in self.model.caches.items()
        }

    def party(
        self,
        store: Store,
        rank: Rank,
        *,
        seed: int = 0,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Party:
        """Return a rank with poisoned pools, in which pages lie at random; see `components`."""
        caches = self.model.caches
        rng = np.random.default_rng([seed, rank.tp, rank.pp])  # context ranks see one table
        tables = {n: self._table(n, rank, rng) for n, one in caches.items() if not one.source}
        followers = [(name, one) for name, one in caches.items() if one.source]
        for name, one in followers * len(followers):  # each behind its source, at last
            if one.source in tables:
                tables[name] = _follow(tables[one.source], caches[one.source].rows, one.rows)
        held = {name: holding(one.spec, rank) for name, one in caches.items()}
        memory = {}
        for name, one in caches.items():
            slots = one.rows * (self.model.pages + GUARDS)
            if sharers(one, rank) == 1:  # it may follow the logical slots of one dealt out
                slots = max(slots, int(tables[name].max()) + 1)
            memory[name] = [
                np.full((len(mine), slots, *mine.shape[3:]), POISON, dtype=np.uint8)
                for mine in share(self.model, name, held[name])
            ]
        party = Party(self, rank, held, tables, memory)
        pools = {name: pool_of(one.spec, memory[name]) for name, one in caches.items()}
        components = self.components(pools, **(fields or {}))
        options = {"drafters": self.model.drafters, "staging_bytes": STAGING, **options}
        party.client = Client(store, components, rank, **options)
        return party

    def parties(self, store: Store, topology: str, **options: Any) -> list[Party]:
        ranks = Topology.parse(topology).ranks()
        return [self.party(store, rank, **options) for rank in ranks]

    def save(self, store: Store, **options: Any) -> list[SaveReport]:
        """Save the path as every rank of the model's writer."""
        return [party.fill().save(**options) for party in self.parties(store, self.model.writer)]

    def _table(self, name: str, rank: Rank, rng: np.random.Generator) -> Table:
        """Return slots of pages: of whole ones in order, where others of fewer rows follow them."""
        one, pages = self.model.caches[name], self.model.pages
        rows, ranks = one.rows, sharers(one, rank)
        followed = any(c.source == name and c.rows != rows for c in self.model.caches.values())
        if ranks == 1 and not followed:
            return rng.permutation(rows * (pages + GUARDS))[: rows * pages].reshape(pages, rows)
        rounds = rng.permutation(pages + GUARDS)[:pages]
        turns = (1 + np.arange(pages)) % ranks  # page 0 is rank 1's
        blocks = (rounds * ranks + turns)[:, None] if ranks > 1 else rounds[:, None]
        order = np.arange(rows) if followed else rng.permutation(rows)
        return np.asarray(blocks * rows + order, dtype=np.int64)


def _follow(table: Table, source_rows: int, rows: int) -> Table:
    if source_rows == rows:
        return table
    return table[:, :1] // source_rows * rows + np.arange(rows)


def pool_of(spec: KVSpec, memory: Sequence[Bytes]) -> PagedCache:
    """Return the pool as unikv takes it, over the memory of a rank."""
    typed: dict[str, list[torch.Tensor]] = {}
    for tensor, part in zip(tensors(spec), memory, strict=True):
        dtype = getattr(torch, tensor.dtype)
        tail = tensor.shape[1:]
        layers = [torch.from_numpy(layer).view(dtype) for layer in part]
        typed[tensor.name] = [layer.view(*layer.shape[:2], *tail) for layer in layers]
    if spec.kind == "mha":
        return PagedCache.slots(typed["k"], typed["v"], dtype=spec.dtype)
    if spec.kind == "state":
        return PagedCache.states(spec, typed)
    return PagedCache.rows([layer[:, 0] for layer in typed["rows"]], dtype=spec.dtype)


@cache
def world_of(model: Model) -> World:
    return World(model)


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {key: data for key, (data, _) in store._objects.items()}


@cache
def saved(model: Model) -> Mapping[str, tuple[bytes, float]]:
    store = MemoryStore()
    world_of(model).save(store)
    return dict(store._objects)


def filled_store(model: Model) -> MemoryStore:
    """Return a store that holds what all ranks of the model's writer saved."""
    store = MemoryStore()
    store._objects.update(saved(model))
    return store
