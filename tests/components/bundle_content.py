"""Bundle content: a model's components, their bytes, and each rank's share. It reads no plan.

Every row of every tensor has bytes that follow from its place (component, tensor, layer, page, row,
head or channel), so that a row in a wrong place is seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tests.components import oracle
from unikv import KVSpec
from unikv.bundle import Need
from unikv.coverage import Coverage, Endpoints, EveryPage, Window
from unikv.draft import Drafter
from unikv.dtypes import DTYPES
from unikv.topology import Rank

Bytes: TypeAlias = NDArray[np.uint8]

EVERY = oracle.Rule("every")


@dataclass(frozen=True, eq=False)
class Cache:
    """One component, in DESIGN's words."""

    spec: KVSpec
    rule: oracle.Rule = EVERY
    need: Need = "required"
    source: str | None = None
    packed: bool = False
    sharded: bool | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # others of its namespace

    @property
    def coverage(self) -> Coverage:
        if self.rule.kind == "window":
            return Window(self.rule.tokens, self.rule.retained)
        return Endpoints() if self.rule.kind == "state" else EveryPage()

    @property
    def rows(self) -> int:
        """Rows of a page in a pool."""
        spec = self.spec
        return {"rows": spec.rows_per_page, "state": 1}.get(spec.kind, spec.page_tokens)


class Tensor(NamedTuple):
    """One tensor of a layer: ``shape`` of a row as the engine has it, on a rank that holds all."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    segments: tuple[int, ...]  # of axis 0, each cut by itself over the ranks


@dataclass(frozen=True, eq=False)
class Model:
    caches: Mapping[str, Cache]
    writer: str  # topology
    readers: tuple[str, ...]
    drafters: tuple[Drafter, ...] = ()
    pages: int = 6

    @property
    def page_tokens(self) -> int:
        return next(iter(self.caches.values())).spec.page_tokens


def tensors(spec: KVSpec) -> list[Tensor]:
    """Return what an engine allocates of one layer, a row each token, page or state."""
    if spec.kind == "mha":
        return [
            Tensor(name, spec.dtype, (spec.kv_heads, dim), (spec.kv_heads,))
            for name, dim in (("k", spec.head_dim), ("v", spec.v_head_dim))
        ]
    if spec.kind == "state":
        return [
            Tensor(p.name, p.dtype, p.shape, p.segments or p.shape[:1]) for p in spec.state_parts
        ]
    dim = spec.head_dim if spec.kind == "mla" else spec.row_bytes
    return [Tensor("rows", spec.dtype, (1, dim), (1,))]


class Holding(NamedTuple):
    """What a rank holds of a component: ordinals of layers; heads or groups."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]


def holding(spec: KVSpec, rank: Rank) -> Holding:
    """Return a rank's share: stages by model layer, drafts behind the target on the last stage."""
    topology = rank.topology
    ends = list(accumulate(topology.pp_layers or ())) or [2**16]
    ends[-1] = 2**16
    homes = [next(n for n, end in enumerate(ends) if layer < end) for layer in spec.layer_ids]
    heads, tp = spec.kv_heads, topology.tp
    held = [h for h in range(heads) if h // (heads // tp) == rank.tp] if heads >= tp else []
    layers = tuple(n for n, home in enumerate(homes) if home == rank.pp)
    return Holding(layers, tuple(held or [rank.tp // (tp // heads)]))


@cache
def content(model: Model, name: str) -> tuple[Bytes, ...]:
    """Return [layer, page, row, axis 0, byte] of each tensor, for a rank that holds all."""
    one, number = model.caches[name], sorted(model.caches).index(name)
    found = []
    for n, tensor in enumerate(tensors(one.spec)):
        width = int(np.prod(tensor.shape[1:], dtype=int)) * DTYPES[tensor.dtype]
        shape = (one.spec.layers, model.pages, one.rows, tensor.shape[0], width)
        mixed = np.full(shape, number * 8 + n + 1, dtype=np.uint64)
        for place in np.indices(shape, dtype=np.uint64, sparse=True):
            mixed = (mixed + place + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        values: Bytes = (mixed >> np.uint64(56)).astype(np.uint8)
        values.flags.writeable = False
        found.append(values)
    return tuple(found)


@cache
def share(model: Model, name: str, held: Holding) -> tuple[Bytes, ...]:
    """Return what a rank holds of each tensor: of every segment of axis 0, its groups' part."""
    spec = model.caches[name].spec
    found = []
    for tensor, whole in zip(tensors(spec), content(model, name), strict=True):
        picked, start = list[int](), 0
        for segment in tensor.segments:
            part = segment // spec.kv_heads
            picked += [start + h * part + i for h in held.heads for i in range(part)]
            start += segment
        found.append(whole[list(held.layers)][:, :, :, picked])
    return tuple(found)


def sharers(one: Cache, rank: Rank) -> int:
    """Return over how many context ranks the pages of a component are dealt out."""
    kept = one.sharded is False or one.spec.kind == "state"
    return 1 if kept else rank.topology.cp
