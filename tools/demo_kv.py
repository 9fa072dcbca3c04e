"""KV file: a whole cache or one rank's box as raw bytes, so that processes share it by mmap.

Bytes in order (layer, K/V, head, token, width); the shape is told beside the file. It knows no
rank and no store.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from unikv.geometry import Box
from unikv.spec import DTYPES, KVSpec


class Shape(NamedTuple):
    """Sizes of a KV file: uint8 ``[layers, 2, heads, tokens, width]``."""

    layers: int
    parts: int
    heads: int
    tokens: int
    width: int  # bytes of one head of one token

    @classmethod
    def of(cls, spec: KVSpec, box: Box, tokens: int) -> "Shape":
        """Return the shape of what ``box`` holds of ``tokens`` tokens."""
        width = spec.head_dim * DTYPES[spec.dtype]
        return cls(box.layers.size, 2, box.heads.size, tokens, width)


def write_kv(path: Path, kv: Tensor) -> None:
    """Write a cache ``[layers, 2, heads, tokens, dim]`` of any dtype."""
    kv.contiguous().view(torch.uint8).numpy().tofile(path)


def map_kv(path: Path, shape: Shape) -> Tensor:
    """Return the bytes of a KV file, uint8 of ``shape``, mapped: what is not looked at costs none.

    Writing to the tensor changes no file.
    """
    size = shape.layers * shape.parts * shape.heads * shape.tokens * shape.width
    if size == 0:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(shape)


def cut_box(kv: Tensor, box: Box) -> Tensor:
    """Return the view of a whole cache that ``box`` holds."""
    layers, heads = box.layers, box.heads
    return kv[layers.start : layers.stop, :, heads.start : heads.stop]


def first_difference(one: Tensor, other: Tensor, box: Box, page_tokens: int) -> str | None:
    """Return where two boxes of bytes first differ, in words, or None where they do not.

    Args:
        one: uint8 ``[layers, 2, heads, tokens, width]``.
        other: the same shape.
        box: whose layers and heads they are.
        page_tokens: tokens of a page.
    """
    if torch.equal(one, other):
        return None
    # Page by page, the way a load goes on: a sequence is usable up to its first wrong page.
    differs = (one != other).any(-1).permute(3, 0, 1, 2).contiguous()  # [tokens, layers, 2, heads]
    token, layer, part, head = torch.nonzero(differs)[0].tolist()
    return (
        f"page {token // page_tokens}, token {token % page_tokens}, "
        f"layer {box.layers.start + layer}, {'KV'[part]} head {box.heads.start + head}"
    )
