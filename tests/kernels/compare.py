"""Compare pack and unpack with the oracle, guard bytes included. It makes up no pieces."""

import random
from collections.abc import Sequence
from unittest.mock import patch

import torch
from torch import Tensor

from tests.kernels.oracle import Table, pack_slowly, unpack_slowly
from tests.kernels.pools import POISON, Layers, Layout, check_content, coded_layers, memory
from unikv.geometry import Piece
from unikv.kernels import reference
from unikv.kernels.reference import pack, unpack
from unikv.paged import PagedCache


def shuffled(blocks: int, pages: int, page_blocks: int, seed: int = 0) -> list[list[int]]:
    """Return a block table in random order, no block twice."""
    ids = random.Random(seed).sample(range(blocks), pages * page_blocks)
    return [ids[i * page_blocks : (i + 1) * page_blocks] for i in range(pages)]


def index_of(pool: PagedCache, table: Table, tokens: int) -> Tensor:
    """Return the index for a table of blocks of ``tokens`` tokens, as slots in a pool of slots."""
    each = tokens // pool.block_tokens
    slots = [[block * each + i for block in row for i in range(each)] for row in table]
    return pool.index(slots, len(table[0]) * tokens, unique=True)


def check_both_ways(
    layout: Layout,
    dtype: str,
    data: Layers,
    table: Table,
    pieces: Sequence[Piece],
    page_bytes: int,
) -> None:
    """Move pages both through the scratch and, where the kernel can, without it; compare all."""
    for least in (0, 1 << 60):
        with (
            patch.object(reference, "DIRECT_ROW_BYTES", least),
            patch.object(reference, "DIRECT_BATCH_BYTES", least),
        ):
            _check_both_ways(layout, dtype, data, table, pieces, page_bytes)


def _check_both_ways(
    layout: Layout,
    dtype: str,
    data: Layers,
    table: Table,
    pieces: Sequence[Piece],
    page_bytes: int,
) -> None:
    """Pack one pool, then unpack into another that differs in every row, and compare all bytes."""
    tokens = data[0][0].shape[1]
    pool = layout(data, dtype)
    before = [storage.clone() for storage in memory(pool)]
    staging = torch.full((len(table), page_bytes), POISON, dtype=torch.uint8)
    pack(pool.parts, index_of(pool, table, tokens), staging, pieces)
    expected = pack_slowly(data, table, pieces, page_bytes)
    assert torch.equal(staging, torch.from_numpy(expected))
    assert all(map(torch.equal, memory(pool), before)), "pack wrote to the pool"

    count, _, heads, _ = data[0][0].shape
    widths = tuple(array.shape[3] for array in data[0])
    other = coded_layers(len(data), (count, tokens, heads), widths, seed=1)
    target = layout(other, dtype)
    before = [storage.clone() for storage in memory(target)]
    rows = [[view.clone() for view in views] for views in target.parts]
    unpack(target.parts, index_of(target, table, tokens), staging, pieces)
    assert torch.equal(staging, torch.from_numpy(expected)), "unpack wrote to staging"
    unpack_slowly(other, table, pieces, expected)
    check_content(target, other)
    for views, kept in zip(target.parts, rows, strict=True):
        for view, row in zip(views, kept, strict=True):
            view.copy_(row)
    assert all(map(torch.equal, memory(target), before)), "unpack wrote between the rows"
