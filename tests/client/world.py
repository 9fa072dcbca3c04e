"""World: a small model's KV with values that say where they belong, and pools of its ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unikv import Client, KVSpec, Namespace, PagedCache, Topology, page_hashes
from unikv.store import Store
from unikv.topology import Rank

POISON = -7


@dataclass
class Side:
    """One rank with its pool: random slots inside, poison in every other slot."""

    rank: Rank
    pools: list[list[Tensor]]  # by part, then by layer: (slots, heads, dim)
    slots: Tensor  # int64 (pages, page_tokens)
    client: Client

    def touched(self) -> Tensor:
        """Return which slots hold anything but poison: bool (slots,)."""
        return torch.stack(
            [(t != POISON).flatten(1).any(1) for part in self.pools for t in part]
        ).any(0)


@dataclass
class World:
    """A model of 6 layers and 4 KV heads by default, with the KV of some pages."""

    spec: KVSpec
    pages_count: int = 5
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = self.spec
        self.namespace = Namespace(
            spec=spec, weights="unversioned", model="world", rope="none", **self.options
        )
        tokens = self.pages_count * spec.page_tokens
        self.pages = page_hashes(range(1000, 1000 + tokens), spec.page_tokens)
        dims = [spec.head_dim] if spec.kind == "mla" else [spec.head_dim, spec.v_head_dim]
        # [part][layer, token, head, dim]: every value differs from every other
        self.kv: list[Tensor] = []
        base = 1
        for dim in dims:
            shape = (spec.layers, tokens, spec.kv_heads, dim)
            count = spec.layers * tokens * spec.kv_heads * dim
            self.kv.append(torch.arange(base, base + count, dtype=torch.int32).view(shape))
            base += count

    def side(
        self, store: Store, rank: Rank, *, seed: int = 0, filled: bool = False, **options: Any
    ) -> Side:
        """Return a rank with a pool that is poisoned, or ``filled`` with its box of the KV."""
        spec = self.spec
        box = rank.box(spec)
        tokens = self.pages_count * spec.page_tokens
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(tokens + 13, generator=generator)[:tokens]
        pools = []
        for whole in self.kv:
            mine = whole[box.layers.start : box.layers.stop, :, box.heads.start : box.heads.stop]
            part = []
            for layer in mine:
                pool = torch.full((tokens + 13, *layer.shape[1:]), POISON, dtype=torch.int32)
                if filled:
                    pool[order] = layer
                part.append(pool)
            pools.append(part)
        if spec.kind == "mla":
            cache = PagedCache.rows([t.flatten(1) for t in pools[0]])
        else:
            cache = PagedCache.slots(pools[0], pools[1])
        client = Client(store, self.namespace, rank, cache, **options)
        return Side(rank, pools, order.view(self.pages_count, spec.page_tokens), client)

    def holds(self, side: Side, pages: int) -> bool:
        """Tell whether the first ``pages`` pages are in the pool, and poison everywhere else."""
        box = side.rank.box(self.spec)
        tokens = pages * self.spec.page_tokens
        slots = side.slots.flatten()[:tokens]
        for whole, part in zip(self.kv, side.pools, strict=True):
            for i, pool in enumerate(part):
                want = torch.full_like(pool, POISON)
                want[slots] = whole[box.layers.start + i, :tokens, box.heads.start : box.heads.stop]
                if not torch.equal(pool, want):
                    return False
        return True

    def save(self, store: Store, topology: Topology, **options: Any) -> list[Any]:
        """Save the whole KV as every rank of a topology; return the reports."""
        reports = []
        for seed, rank in enumerate(topology.ranks()):
            side = self.side(store, rank, seed=seed, filled=True, **options)
            reports.append(side.client.save(self.pages, side.slots))
        return reports

    def load(self, store: Store, topology: Topology, **options: Any) -> Sequence[tuple[Side, Any]]:
        """Load as every rank of a topology into poisoned pools; return sides and reports."""
        loaded = []
        for seed, rank in enumerate(topology.ranks()):
            side = self.side(store, rank, seed=100 + seed, **options)
            loaded.append((side, side.client.load(self.pages, side.slots)))
        return loaded
