"""Pools: one rank's memory of one component, filled or read as the oracle says. They do no I/O.

All is poison but for what was put in or loaded; there are spare slots that nobody names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal, TypeAlias

import numpy as np
import torch

from tests.topology.oracle import POISON, Holding, Model, Numbers, Places, numbers
from unikv import KVSpec, PagedCache

Layout: TypeAlias = Literal["slots", "NHD", "HND"]

BLOCK = 4  # tokens of a block in pools of blocks


@cache
def spec_of(model: Model) -> KVSpec:
    if model.heads:
        return KVSpec.mha(
            layers=model.layers,
            kv_heads=model.heads,
            head_dim=model.dims[0],
            v_head_dim=model.dims[1],
            dtype="int32",
            page_tokens=model.page,
            layer_ids=model.layer_ids,
        )
    if model.rows:
        return KVSpec.rows(
            layers=model.layers,
            row_bytes=model.dims[0] * 4,
            rows_per_page=model.rows,
            page_tokens=model.page,
            layer_ids=model.layer_ids,
        )
    return KVSpec.mla(
        layers=model.layers,
        dim=model.dims[0],
        dtype="int32",
        page_tokens=model.page,
        layer_ids=model.layer_ids,
    )


@dataclass
class Pool:
    """One rank's memory of one component, where the path lies in it, and what it should hold."""

    model: Model
    held: Holding
    places: Places
    slots: int
    layout: Layout = "slots"
    views: list[Numbers] = field(init=False)  # by part: [layer, block, row of it, head, dim]

    def __post_init__(self) -> None:
        sizes = (len(self.held.layers), self.slots // self.block, self.block, len(self.held.heads))
        dims = self.model.dims
        if self.layout == "slots":
            self.views = [np.full((*sizes, dim), POISON, dtype=np.int32) for dim in dims]
            return
        layers, blocks, rows, heads = sizes
        inner = (rows, heads) if self.layout == "NHD" else (heads, rows)
        self.memory = np.full((layers, blocks, *inner, sum(dims)), POISON, dtype=np.int32)
        ordered = self.memory if self.layout == "NHD" else self.memory.transpose(0, 1, 3, 2, 4)
        self.views = np.split(ordered, np.cumsum(dims)[:-1], axis=4)

    @property
    def block(self) -> int:
        return 1 if self.layout == "slots" else BLOCK

    @cached_property
    def cache(self) -> PagedCache:
        """The pool as unikv takes it."""
        if self.layout != "slots" and self.model.heads:
            tensors = [torch.from_numpy(layer) for layer in self.memory]
            dims = (self.model.dims[0], self.model.dims[1])
            return PagedCache.blocks(
                tensors, order=self.layout, split="packed", dims=dims, dtype="int32"
            )
        if self.model.heads:
            k, v = ([torch.from_numpy(layer[:, 0]) for layer in view] for view in self.views)
            return PagedCache.slots(k, v, dtype="int32")
        rows = [torch.from_numpy(layer[:, :, 0]) for layer in self.views[0]]
        return PagedCache.rows(rows, dtype="int32")

    @property
    def table(self) -> torch.Tensor:
        """What the engine passes: slots or, for pools of blocks, its block table."""
        table = self.places.table
        return torch.from_numpy(table if self.block == 1 else table[:, :: self.block] // BLOCK)

    def fill(self, pages: Sequence[int]) -> "Pool":
        self._put(self.views, pages)
        return self

    def holds(self, pages: Sequence[int]) -> bool:
        """Tell whether the rank's share of these pages is there, and poison everywhere else."""
        wanted = [np.full(view.shape, POISON, dtype=np.int32) for view in self.views]
        self._put(wanted, pages)
        return all(map(np.array_equal, self.views, wanted))

    def _put(self, views: Sequence[Numbers], pages: Sequence[int]) -> None:
        held, total = self.held, len(self.places.table)
        for view, part in zip(views, numbers(self.model, total), strict=True):
            mine = part[np.ix_(held.layers, range(total), held.rows, held.heads)]
            for page in set(pages) & set(held.pages):
                rows = self.places.local(page)
                view[:, rows // self.block, rows % self.block] = mine[:, page]
