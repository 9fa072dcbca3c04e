"""Pools of every layout, filled with bytes that say where they belong. It calls no kernel."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unikv.paged import PagedCache
from unikv.pool_layouts import Order, Split
from unikv.regions import Region
from unikv.spec import DTYPES

Bytes: TypeAlias = npt.NDArray[np.uint8]
Layers: TypeAlias = list[tuple[Bytes, ...]]  # by layer and part: (blocks, tokens, heads, width)

POISON = 0xA5


def coded(layer: int, part: int, shape: tuple[int, ...], seed: int = 0) -> Bytes:
    """Return bytes mixed from layer, part, block, token, head and byte, so that a swap shows."""
    key: npt.NDArray[np.uint64] = np.full(shape, 64 * seed + 8 * layer + part, dtype=np.uint64)
    for axis in np.indices(shape, dtype=np.uint64):
        key = (key * np.uint64(100_003)) ^ axis
    key ^= key >> np.uint64(29)
    return ((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56)).astype(np.uint8)


def coded_layers(
    layers: int, shape: tuple[int, int, int], widths: tuple[int, ...], seed: int = 0
) -> Layers:
    """Return a pool's content: ``shape`` is blocks, tokens of a block and heads."""
    return [
        tuple(coded(layer, part, (*shape, width), seed) for part, width in enumerate(widths))
        for layer in range(layers)
    ]


def as_tensor(array: Bytes, dtype: str) -> Tensor:
    """Return what an engine holds: a contiguous tensor of the dtype with these bytes."""
    return torch.from_numpy(np.array(array, order="C")).view(getattr(torch, dtype))


def slots(data: Layers, dtype: str) -> PagedCache:
    k, v = ([as_tensor(x[i].reshape(-1, *x[i].shape[2:]), dtype) for x in data] for i in (0, 1))
    return PagedCache.slots(k, v)


def slots_padded(data: Layers, dtype: str) -> PagedCache:
    """Slots with an element that is nobody's before all, behind each head and behind each slot."""
    size = DTYPES[dtype]
    pair: tuple[list[Tensor], list[Tensor]] = ([], [])
    for layer in data:
        for part, array in enumerate(layer):
            count, heads, width = array.shape[0] * array.shape[1], array.shape[2], array.shape[3]
            head = width // size + 1
            room = np.full((1 + count * (heads * head + 1)) * size, POISON, dtype=np.uint8)
            view = as_tensor(room, dtype).as_strided(
                (count, heads, width // size), (heads * head + 1, head, 1), 1
            )
            view.view(torch.uint8).copy_(torch.from_numpy(array.reshape(count, heads, width)))
            pair[part].append(view)
    return PagedCache.slots(*pair)


def blocks(data: Layers, dtype: str, *, order: Order, split: Split) -> PagedCache:
    tensors = []
    for layer in data:
        k, v = (array if order == "NHD" else array.swapaxes(1, 2) for array in layer)
        packs = split == "packed"
        both = np.concatenate([k, v], -1) if packs else np.stack([k, v], int(split[-1]))
        tensors.append(as_tensor(both, dtype))
    dims = _dims(data, dtype) if split == "packed" else None
    return PagedCache.blocks(tensors, order=order, split=split, dims=dims)


def vllm_nhd(data: Layers, dtype: str) -> PagedCache:
    """vLLM's usual pool: shape (blocks, heads, tokens, 2 * dim) over token-major memory."""
    tensors = [as_tensor(np.concatenate(x, -1), dtype).transpose(1, 2) for x in data]
    return PagedCache.blocks(tensors, order="HND", dims=_dims(data, dtype))


def _dims(data: Layers, dtype: str) -> tuple[int, int]:
    k, v = (array.shape[-1] // DTYPES[dtype] for array in data[0])
    return k, v


def allocation(data: Layers, dtype: str) -> PagedCache:
    """All layers in one buffer: odd ones head-major with gaps, and no two at equal distances."""
    regions, offset = list[list[Region]](), 24
    for layer, parts in enumerate(data):
        regions.append([])
        for array in parts:
            count, tokens, heads, width = array.shape
            block = tokens * heads * width
            odd = (block + 40, width, tokens * width)
            strides = odd if layer % 2 else (block, heads * width, width)
            regions[-1].append(Region(offset, (count, tokens, heads, width), strides))
            offset = regions[-1][-1].stop + 16 * (layer + 1)
    pool = PagedCache.packed(torch.full((offset,), POISON, dtype=torch.uint8), regions, dtype=dtype)
    for views, parts in zip(pool.parts, data, strict=True):
        for view, array in zip(views, parts, strict=True):
            view.copy_(torch.from_numpy(array))
    return pool


def rows(data: Layers, dtype: str) -> PagedCache:
    """One tensor (slots, dim) a layer."""
    return PagedCache.rows([as_tensor(x.reshape(-1, x.shape[-1]), dtype) for (x,) in data])


def row_blocks(data: Layers, dtype: str) -> PagedCache:
    """One tensor (blocks, tokens, dim) a layer."""
    return PagedCache.rows([as_tensor(x[:, :, 0], dtype) for (x,) in data])


Layout: TypeAlias = Callable[[Layers, str], PagedCache]

UNEQUAL: dict[str, Layout] = {  # layouts in which V may be wider or narrower than K
    "slots": slots,
    "slots-padded": slots_padded,
    "NHD-packed": partial(blocks, order="NHD", split="packed"),
    "HND-packed": partial(blocks, order="HND", split="packed"),
    "vllm-nhd": vllm_nhd,
    "allocation": allocation,
}
HEADED: dict[str, Layout] = UNEQUAL | {
    "NHD-axis0": partial(blocks, order="NHD", split="axis0"),
    "NHD-axis1": partial(blocks, order="NHD", split="axis1"),
    "HND-axis0": partial(blocks, order="HND", split="axis0"),
    "HND-axis1": partial(blocks, order="HND", split="axis1"),
}
HEADLESS: dict[str, Layout] = {"rows": rows, "row-blocks": row_blocks, "allocation": allocation}


def memory(pool: PagedCache) -> list[Tensor]:
    """Return every byte behind a pool, padding included: one flat tensor a storage."""
    storages = {}
    for views in pool.parts:
        for view in views:
            storage = view.untyped_storage()
            storages[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage)
    return list(storages.values())


def check_content(pool: PagedCache, data: Layers) -> None:
    """Assert that the pool holds these bytes."""
    for views, arrays in zip(pool.parts, data, strict=True):
        for view, array in zip(views, arrays, strict=True):
            assert torch.equal(view.reshape(array.shape), torch.from_numpy(array))
