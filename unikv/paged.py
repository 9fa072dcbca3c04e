"""PagedCache: one rank's KV pool of one component, whatever its layout. It moves no bytes.

A pool is the engine's own memory: blocks of tokens (or single slots) in one tensor or two a layer.
The views here share that memory, so it is only as alive and as right as the engine keeps it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from unikv.errors import PoolError
from unikv.geometry import Box
from unikv.pool_index import Slots, read_index
from unikv.pool_layouts import (
    Order,
    PoolView,
    Split,
    check_views,
    read_dtype,
    route_layers,
    view_blocks,
    view_regions,
    view_rows,
    view_slots,
)
from unikv.pool_state import view_states
from unikv.regions import Region
from unikv.spec import DTYPES, KVSpec

Tensors: TypeAlias = Iterable[Tensor]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PagedCache:
    """The pool of one component on one rank; build it with `slots`, `blocks`, `rows` or `packed`.

    ``parts[layer][part]`` is a uint8 view (blocks, block_tokens, heads, width bytes) with the
    engine's strides, ``width`` contiguous; ``part`` counts as the spec's parts do (K, then V).
    ``dtype`` is the logical one, a name of `unikv.spec.DTYPES`.

    All constructors raise `PoolError` where a tensor is not of the layout's shape, its rows are
    not contiguous, layers differ in anything but strides, or two rows share memory.
    """

    parts: tuple[tuple[Tensor, ...], ...]
    dtype: str

    @classmethod
    def slots(cls, k: Tensors, v: Tensors, *, dtype: str | None = None) -> "PagedCache":
        """Return a pool of single slots, as SGLang has it.

        Args:
            k: one tensor (slots, heads, dim) a layer.
            v: the same of V, whose dim may differ.
            dtype: the logical dtype, where the engine keeps it in integers, as fp8 in uint8.
        """
        keys, values = view_slots(k, "k"), view_slots(v, "v")
        if len(keys) != len(values):
            raise PoolError(f"{len(keys)} tensors of K and {len(values)} of V: want one a layer")
        return cls._of(list(zip(keys, values, strict=True)), dtype)

    @classmethod
    def blocks(
        cls,
        kv: Tensors,
        *,
        order: Order,
        split: Split | None = None,
        dims: tuple[int, int] | None = None,
        dtype: str | None = None,
    ) -> "PagedCache":
        """Return a pool of blocks, K and V in one tensor a layer, as vLLM has it.

        Args:
            kv: one tensor a layer, of 4 axes where K and V are packed, else of 5.
            order: how the *shape* goes on behind blocks: "NHD" is (tokens, heads, dim), "HND" is
                (heads, tokens, dim). Strides may be any: vLLM's tensors have the shape of HND
                even where its memory is NHD.
            split: where K and V lie: "axis0" is (2, blocks, ...), "axis1" is (blocks, 2, ...),
                "packed" is K before V on the last axis. None reads it from the shape, and refuses
                a pool of 2 blocks, whose shape reads in two ways.
            dims: elements of K and of V on a packed axis; None for two equal halves.
            dtype: the logical dtype, where the engine keeps it in integers, as fp8 in uint8.
        """
        return cls._of(view_blocks(kv, order, split, dims), dtype)

    @classmethod
    def rows(cls, rows: Tensors, *, dtype: str | None = None) -> "PagedCache":
        """Return a pool of rows without heads: MLA latents, indexer rows, rows with scales inside.

        Args:
            rows: one tensor (slots, dim) or (blocks, tokens, dim) a layer. A row is whatever the
                engine moves as one: where an indexer has one row a block, a slot is a block.
            dtype: the logical dtype, where the engine keeps it in integers, as fp8 in uint8.
        """
        return cls._of([(view,) for view in view_rows(rows, "rows")], dtype)

    @classmethod
    def states(cls, spec: KVSpec, tensors: Mapping[str, Sequence[Tensor]]) -> "PagedCache":
        """Return a pool of recurrent states.

        Args:
            spec: of kind "state"; its parts say what the tensors hold.
            tensors: by part, one tensor (slots, ...) a layer of this rank: the part's shape, with
                axis 0 cut to the groups that the rank holds, segment after segment.
        """
        if spec.kind != "state":
            raise PoolError(f"states of a spec of kind {spec.kind!r}: want kind 'state'")
        return cls._of(view_states(spec.state_parts, spec.kv_heads, tensors), None)

    @classmethod
    def packed(
        cls,
        buffer: Tensor,
        layers: Iterable[Sequence[Region]] | Mapping[str, Sequence[Region]],
        *,
        dtype: str,
        names: Sequence[str] | None = None,
    ) -> "PagedCache":
        """Return a pool inside one allocation.

        Args:
            buffer: the allocation, contiguous, of one axis and any dtype.
            layers: for each layer one region a part, in bytes: each states its own offset, sizes
                and strides, so layers may lie at any distance and in any order. Or regions by the
                engine's names of layers, other components' among them.
            dtype: the logical dtype of what the regions hold.
            names: of this pool's layers in order, where regions go by name.
        """
        return cls._of(view_regions(buffer, route_layers(layers, names), dtype), dtype)

    @classmethod
    def _of(cls, layers: Sequence[Sequence[PoolView]], dtype: str | None) -> "PagedCache":
        check_views(layers)
        parts = tuple(tuple(view.bytes for view in views) for views in layers)
        return cls(parts, read_dtype(layers, dtype))

    @property
    def layers(self) -> int:
        """How many layers of the component this rank holds."""
        return len(self.parts)

    @property
    def on_gpu(self) -> bool:
        """Whether its tensors are on a CUDA device."""
        return bool(self.parts) and self.parts[0][0].is_cuda

    @property
    def block_count(self) -> int:
        """How many blocks the pool has; in a pool of slots a block is one slot."""
        return self.parts[0][0].shape[0] if self.parts else 0

    @property
    def block_tokens(self) -> int:
        """Tokens (or rows) of a block; 1 in a pool of slots."""
        return self.parts[0][0].shape[1] if self.parts else 1

    @property
    def heads(self) -> int:
        """Heads of this rank; 1 for kinds without heads."""
        return self.parts[0][0].shape[2] if self.parts else 0

    @property
    def device(self) -> torch.device:
        """The device that the pool lies on."""
        return self.parts[0][0].device if self.parts else torch.device("cpu")

    def __repr__(self) -> str:
        widths = [part.shape[3] for part in self.parts[0]] if self.parts else []
        return (
            f"PagedCache({self.layers} layers, {self.block_count} blocks of {self.block_tokens} "
            f"tokens, {self.heads} heads, rows of {widths} bytes, {self.dtype}, {self.device})"
        )

    def check(self, spec: KVSpec, box: Box) -> None:
        """Raise `PoolError` unless the pool holds exactly ``box`` of pages of ``spec``.

        This release moves pools in host memory. A pool on a GPU is refused here, until the
        pipeline that stages it through pinned memory lands.
        """
        if self.layers != box.layers.size:
            raise PoolError(f"pool of {self.layers} layers: want {box.layers.size}, the rank's")
        if not self.layers:
            return
        if self.device.type != "cpu":
            raise PoolError(f"pool on device {self.device}: want cpu, this release moves no other")
        names = [part.name for part in spec.parts]
        if len(self.parts[0]) != len(names):
            raise PoolError(
                f"pool of {len(self.parts[0])} tensors a layer: want {len(names)}, "
                f"{' and '.join(names)} of kind {spec.kind}"
            )
        if spec.kind in ("mha", "mla") and self.dtype != spec.dtype:
            raise PoolError(f"pool of dtype {self.dtype}: want {spec.dtype}, as the spec")
        if self.heads != box.heads.size:
            swapped = self.block_tokens == box.heads.size
            hint = f"; blocks have {self.block_tokens} tokens: want the other order=?"
            raise PoolError(
                f"pool of {self.heads} heads: want {box.heads.size}, the rank's"
                f"{hint if swapped else ''}"
            )
        for part, view in zip(spec.parts, self.parts[0], strict=True):
            if view.shape[3] != part.width:
                raise PoolError(
                    f"{part.name} rows of {view.shape[3]} bytes: want {part.width}"
                    f"{_in_elements(spec, part.width)}"
                )
            rows = len(box.phase.tokens(part.rows))
            if rows % self.block_tokens:
                raise PoolError(
                    f"blocks of {self.block_tokens} tokens: want a divisor of the {rows} rows "
                    f"that a page has here"
                )

    def index(self, slots: Slots, page_rows: int, *, unique: bool = False) -> Tensor:
        """Return what the kernels find pages by: block ids, int64 (pages, blocks a page), a copy.

        Args:
            slots: for each page the slots of its rows, (pages, page_rows), or its blocks,
                (pages, page_rows / block_tokens). A tensor of int64 or int32, or nested lists.
            page_rows: rows of a page in this pool: the spec's page_tokens on a rank that holds
                all tokens, rows_per_page for kind "rows", 1 for states.
            unique: refuse a block that is named twice, since one place cannot hold two pages.

        Raises:
            PoolError: naming the page and the value that does not fit.
        """
        blocks = self.block_count if self.parts else None
        return read_index(slots, page_rows, self.block_tokens, blocks, unique=unique)


def _in_elements(spec: KVSpec, width: int) -> str:
    return f", {width // DTYPES[spec.dtype]} of {spec.dtype}" if spec.kind in ("mha", "mla") else ""
