"""Pool layouts: an engine's tensors as byte views of one shape. They know no spec and no rank.

Whatever the layout, each tensor of a layer becomes uint8 (blocks, block_tokens, heads, width) with
the engine's own strides. An axis that the shape alone cannot tell is an argument, never a guess.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from unikv.errors import PoolError
from unikv.regions import Region, find_overlap, overlaps_itself
from unikv.spec import DTYPES

Order: TypeAlias = Literal["NHD", "HND"]
Split: TypeAlias = Literal["axis0", "axis1", "packed"]


class PoolView(NamedTuple):
    """One tensor of one layer as bytes, and what errors call it."""

    name: str
    dtype: str  # torch's name of what the engine's tensor holds
    bytes: Tensor  # uint8 (blocks, block_tokens, heads, width)


def view_slots(tensors: Iterable[Tensor], name: str) -> list[PoolView]:
    """View (slots, heads, dim) tensors, one a layer: blocks of one token."""
    views = _view_each(tensors, name, "(slots, heads, dim)", {3})
    return [view._replace(bytes=view.bytes.unsqueeze(1)) for view in views]


def view_rows(tensors: Iterable[Tensor], name: str) -> list[PoolView]:
    """View (slots, dim) or (blocks, tokens, dim) tensors, one a layer: rows of one head."""
    views = _view_each(tensors, name, "(slots, dim) or (blocks, tokens, dim)", {2, 3})
    blocks = [v.bytes if v.bytes.dim() == 3 else v.bytes.unsqueeze(1) for v in views]
    return [v._replace(bytes=b.unsqueeze(2)) for v, b in zip(views, blocks, strict=True)]


def view_blocks(
    tensors: Iterable[Tensor], order: Order, split: Split | None, dims: tuple[int, int] | None
) -> list[tuple[PoolView, PoolView]]:
    """View K and V of block tensors, one tensor a layer; arguments as `PagedCache.blocks`."""
    if order not in ("NHD", "HND"):
        raise PoolError(f"order {order!r:.40}: want 'NHD' (tokens before heads) or 'HND'")
    if split not in (None, "axis0", "axis1", "packed"):
        raise PoolError(f"split {split!r:.40}: want 'axis0', 'axis1' or 'packed'")
    inner = "tokens, heads" if order == "NHD" else "heads, tokens"
    shape = f"(blocks, {inner}, dims of K and V), or 5 axes with one of 2 for K and V"
    pairs = []
    for view in _view_each(tensors, "kv", shape, {4, 5}):
        k, v = _split(view, split, dims)
        if order == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        pairs.append(
            (
                view._replace(name=f"K of {view.name}", bytes=k),
                view._replace(name=f"V of {view.name}", bytes=v),
            )
        )
    return pairs


def view_regions(
    buffer: Tensor, layers: Iterable[Sequence[Region]], dtype: str
) -> list[tuple[PoolView, ...]]:
    """View a buffer as each layer's own regions say; nothing is carried over between layers."""
    flat = _as_bytes(buffer, "buffer", "(bytes,)", {1})
    return [
        tuple(
            _view_region(flat, Region(*region), f"layer {layer}, part {part}", dtype)
            for part, region in enumerate(regions)
        )
        for layer, regions in enumerate(layers)
    ]


def route_layers(
    layers: Iterable[Sequence[Region]] | Mapping[str, Sequence[Region]],
    names: Sequence[str] | None,
) -> Iterable[Sequence[Region]]:
    """Return regions layer by layer: as they come, or those of ``names`` where they go by name."""
    if not isinstance(layers, Mapping):
        if names is not None:
            raise PoolError(f"names {list(names)!r:.200} of regions without names: want a mapping")
        return layers
    if names is None or len(set(names)) != len(names):
        raise PoolError(f"names {names!r:.200} of layers: want each layer of the pool once")
    if missing := [name for name in names if name not in layers]:
        raise PoolError(f"no regions for {missing!r:.200}: want names of {list(layers)!r:.400}")
    return [layers[name] for name in names]


def check_views(layers: Sequence[Sequence[PoolView]]) -> None:
    """Raise `PoolError` unless all layers are alike and no two rows share a byte."""
    for layer, views in enumerate(layers):
        if not views:
            raise PoolError(f"layer {layer} has no tensors: want one for each part of the spec")
        _check_alike(views, layers[0])
    named = [view for views in layers for view in views]
    regions = []
    for view in named:
        region = region_of(view.bytes)
        if overlaps_itself(region):
            raise PoolError(
                f"{view.name}: rows of {region.shape[3]} bytes at strides {region.strides} "
                "overlap: want every row in memory of its own"
            )
        regions.append(region)
    if named and named[0].bytes.is_meta:
        return  # no memory, so nothing to share; `PagedCache.check` refuses the device
    if shared := find_overlap(regions):
        first, second = (named[i].name for i in shared)
        raise PoolError(f"{first} and {second} share memory: want a tensor each")


def region_of(view: Tensor) -> Region:
    """Return where a byte view lies in memory."""
    blocks, tokens, heads, width = view.shape
    block, token, head = view.stride()[:3]
    return Region(view.data_ptr(), (blocks, tokens, heads, width), (block, token, head))


def read_dtype(layers: Sequence[Sequence[PoolView]], declared: str | None) -> str:
    """Return the logical dtype of a pool; an integer dtype may carry any declared one of its size.

    A pool of no layers has the declared dtype, or "uint8".
    """
    if declared is not None and declared not in DTYPES:
        raise PoolError(f"dtype {declared!r:.40}: want one of {', '.join(DTYPES)}")
    stored = layers[0][0].dtype if layers else declared or "uint8"
    if stored not in DTYPES:
        raise PoolError(f"{layers[0][0].name} of dtype {stored}: want one of {', '.join(DTYPES)}")
    if declared in (None, stored):
        return stored
    if "float" in stored or DTYPES[stored] != DTYPES[declared]:
        raise PoolError(
            f"{layers[0][0].name} of dtype {stored}, declared as {declared}: want {declared}, or "
            f"an integer dtype of {DTYPES[declared]} bytes that carries it"
        )
    return declared


def _view_each(tensors: Iterable[Tensor], name: str, shape: str, axes: set[int]) -> list[PoolView]:
    """View the bytes of one tensor a layer, before any axis is named."""
    views = []
    for layer, tensor in enumerate(tensors):
        label = f"{name}[{layer}]"
        view = _as_bytes(tensor, label, shape, axes)
        views.append(PoolView(label, _dtype_name(tensor), view))
    return views


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _as_bytes(tensor: Tensor, name: str, shape: str, axes: set[int]) -> Tensor:
    """View a tensor's bytes: the last axis in bytes, the others as they are.

    The view has no part in autograd, and is a plain one even where the engine made its pool in
    inference mode: torch would refuse writes to the engine's own outside of that mode.
    """
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        raise PoolError(f"{name} is {type(tensor).__name__}: want a dense torch tensor {shape}")
    if tensor.dim() not in axes or not tensor.numel():
        raise PoolError(f"{name} of shape {tuple(tensor.shape)}: want {shape}, no axis empty")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise PoolError(
            f"{name} has stride {tensor.stride(-1)} on its last axis: want 1, rows contiguous"
        )
    with torch.inference_mode(mode=False):
        strides = (*tensor.stride()[:-1], 1)
        return tensor.detach().as_strided(tensor.shape, strides).view(torch.uint8)


def _split(view: PoolView, split: Split | None, dims: tuple[int, int] | None) -> list[Tensor]:
    """Return K and V of a block tensor's bytes, axes otherwise in the engine's order."""
    shape = tuple(view.bytes.shape)
    axis = _split_axis(view.name, shape, split)
    if axis is not None:
        if dims is not None:
            raise PoolError(
                f"dims {dims} with K and V on axis {axis}: want none, both have one dim"
            )
        return list(view.bytes.unbind(axis))
    itemsize = DTYPES.get(view.dtype, 1)
    dim = shape[-1] // itemsize
    k, v = (dim // 2, dim - dim // 2) if dims is None else dims
    if k < 1 or v < 1 or k + v != dim or (dims is None and k != v):
        raise PoolError(
            f"{view.name} packs K and V in {dim} elements, dims {(k, v)}: want dims=(of K, of V) "
            f"that sum to {dim}"
        )
    k_bytes = k * itemsize
    return [view.bytes[..., :k_bytes], view.bytes[..., k_bytes:]]


def _split_axis(name: str, shape: tuple[int, ...], split: Split | None) -> int | None:
    """Return the axis of K and V, None for the last; refuse a shape that reads in two ways."""
    both = [axis for axis in (0, 1) if len(shape) == 5 and shape[axis] == 2]
    if split is None:
        if len(shape) == 4:
            return None
        if len(both) == 1:
            return both[0]
        raise PoolError(
            f"{name} of 5 axes, the first two {shape[:2]}: want exactly one of 2 for K and V, or "
            "split='axis0' for (2, blocks, ...), 'axis1' for (blocks, 2, ...)"
        )
    if split == "packed":
        if len(shape) == 4:
            return None
        raise PoolError(f"{name} of {len(shape)} axes: split='packed' wants 4")
    axis = int(split[-1])
    if axis not in both:
        raise PoolError(
            f"{name} of {len(shape)} axes {shape}: split={split!r} wants 5, axis {axis} of 2"
        )
    return axis


def _view_region(flat: Tensor, region: Region, name: str, dtype: str) -> PoolView:
    """View one region of a buffer of bytes."""
    numbers = (region.offset, *region.strides)
    if min(region.shape) < 1 or min(numbers) < 0:
        raise PoolError(f"{name}: {region}: want sizes of 1 or more, no offset or stride below 0")
    if region.stop > len(flat):
        raise PoolError(
            f"{name} ends at byte {region.stop}: want it in the buffer's {len(flat)} bytes"
        )
    start = flat.storage_offset() + region.offset
    return PoolView(name, dtype, flat.as_strided(region.shape, (*region.strides, 1), start))


def _check_alike(views: Sequence[PoolView], first: Sequence[PoolView]) -> None:
    """Raise `PoolError` unless a layer's tensors are as the first layer's."""
    if len(views) != len(first):
        raise PoolError(f"{views[0].name}: {len(views)} tensors in this layer: want {len(first)}")
    for view, like in zip(views, first, strict=True):
        top = first[0]
        for what, mine, wanted, name in (
            ("dtype", view.dtype, top.dtype, top.name),
            ("device", view.bytes.device, top.bytes.device, top.name),
            ("blocks, tokens, heads", _axes(view), _axes(top), top.name),
            ("bytes a row", view.bytes.shape[3], like.bytes.shape[3], like.name),
        ):
            if mine != wanted:
                raise PoolError(f"{view.name} has {what} {mine}: want {wanted}, as {name}")


def _axes(view: PoolView) -> tuple[int, ...]:
    return tuple(view.bytes.shape[:3])
