"""Faults that other systems had with layouts and copies (cases/field-reports.md), by case id."""

import mmap
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.kernels.compare import check_both_ways, shuffled
from tests.kernels.oracle import chunk_pieces
from tests.kernels.pools import HEADED, HEADLESS, POISON, coded, coded_layers
from unikv.errors import PoolError
from unikv.geometry import Box, Interval, Phase, Piece
from unikv.kernels.reference import pack, unpack
from unikv.paged import PagedCache
from unikv.regions import Region
from unikv.spec import KVSpec


@pytest.mark.parametrize(("writer", "reader"), list(product(HEADED, repeat=2)))
def test_B06_a_page_moves_between_any_two_layouts_value_by_value(writer: str, reader: str) -> None:
    data = coded_layers(1, (2, 16, 4), (16, 16))
    source = HEADED[writer](data, "bfloat16")
    target = HEADED[reader](coded_layers(1, (2, 16, 4), (16, 16), seed=1), "bfloat16")
    pieces, size = chunk_pieces(data, 16, groups=2)
    staging = torch.full((1, size), POISON, dtype=torch.uint8)
    slots = {
        pool: [[1]] if pool.block_tokens > 1 else [list(range(16, 32))] for pool in (source, target)
    }
    pack(source.parts, source.index(slots[source], 16), staging, pieces)
    unpack(target.parts, target.index(slots[target], 16, unique=True), staging, pieces)
    for view, array in zip(target.parts[0], data[0], strict=True):
        assert torch.equal(view.reshape(array.shape)[1], torch.from_numpy(array[1]))


@pytest.mark.parametrize("layout", ["rows", "row-blocks", "allocation"])
def test_B18_rows_wider_than_their_elements_move_whole(layout: str) -> None:
    data = coded_layers(2, (6, 4, 1), (528,))
    pieces, size = chunk_pieces(data, 8, gap=16)
    check_both_ways(HEADLESS[layout], "uint8", data, shuffled(6, 2, 2), pieces, size)


def test_B18_a_pool_whose_rows_are_not_the_specs_is_refused() -> None:
    spec = KVSpec.mla(layers=1, dim=512, dtype="float8_e4m3fn", page_tokens=4)
    box = Box(Interval(0, 1), Interval(0, 1))
    pool = PagedCache.rows([torch.zeros(8, 528, dtype=torch.uint8)], dtype="float8_e4m3fn")
    with pytest.raises(PoolError, match=r"latent rows of 528 bytes: want 512"):
        pool.check(spec, box)
    whole = KVSpec.rows(layers=1, row_bytes=528, rows_per_page=4, page_tokens=4)
    PagedCache.rows([torch.zeros(8, 528, dtype=torch.uint8)]).check(whole, box)


def sparse(path: Path, size: int) -> torch.Tensor:
    """Return zeros that take address space, and disk only where they are written to."""
    with path.open("w+b") as file:
        file.truncate(size)
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)


@pytest.mark.parametrize("heads_first", [False, True], ids=["NHD", "HND"])
def test_B19_addresses_beyond_32_bits_are_right(heads_first: bool, tmp_path: Path) -> None:  # noqa: FBT001
    stride, ids, tokens, heads, width = 1_077_120, [0, 1993, 1994, 60000], 16, 4, 64
    inner = (width, tokens * width) if heads_first else (heads * width, width)
    region = Region(0, (60_002, tokens, heads, width), (stride, *inner))
    buffer = sparse(tmp_path / "pool", region.stop)
    pool = PagedCache.packed(buffer, [[region]], dtype="uint8")
    view = pool.parts[0][0]
    guards = [1, 1992, 1995, 59_999, 60_001]
    for i in (*ids, *guards):
        view[i] = torch.from_numpy(coded(0, 0, (tokens, heads, width), seed=i))
    size, far = tokens * heads * width, (5 << 30) + 64
    pieces = [
        Piece(0, 0, head, 2, Phase(), head // 2 * size // 2, 2 * width)
        for head in range(0, heads, 2)
    ]
    staging = sparse(tmp_path / "staging", 3 * far + size + 64).as_strided((4, size), (far, 1), 64)
    index = pool.index([[i] for i in ids], tokens, unique=True)
    pack(pool.parts, index, staging, pieces)
    for page, i in enumerate(ids):
        array = coded(0, 0, (tokens, heads, width), seed=i)
        halves = [array[:, :2].reshape(-1), array[:, 2:].reshape(-1)]
        assert torch.equal(staging[page], torch.from_numpy(np.concatenate(halves)))
    unpack(pool.parts, index.flip(0), staging, pieces)
    for was, now in [*zip(ids, reversed(ids), strict=True), *zip(guards, guards, strict=True)]:
        assert torch.equal(
            view[now], torch.from_numpy(coded(0, 0, (tokens, heads, width), seed=was))
        )


def test_B20_an_indexer_row_is_a_page_of_keys_and_scales() -> None:
    row = 64 * 128 + 64 * 4  # 64 fp8 keys, then their 64 scales
    spec = KVSpec.rows(layers=2, row_bytes=row, rows_per_page=1, page_tokens=64)
    data = coded_layers(2, (5, 1, 1), (row,))
    pool = HEADLESS["rows"](data, "uint8")
    pool.check(spec, Box(Interval(0, 2), Interval(0, 1)))
    pieces, size = chunk_pieces(data, 1)
    check_both_ways(HEADLESS["rows"], "uint8", data, [[3], [1]], pieces, size)
    with pytest.raises(PoolError, match=r"shape \(1, 64\): want \(pages, 1\)"):
        pool.index([list(range(64, 128))], spec.parts[0].rows)  # tokens are no rows here
    with pytest.raises(PoolError, match="entry 0: slot 70: want 0 to 4"):
        pool.index([[70]], spec.parts[0].rows)


def test_B20_two_indexer_rows_a_page_keep_their_order() -> None:
    data = coded_layers(1, (8, 1, 1), (8448,))
    pieces, size = chunk_pieces(data, 2)
    check_both_ways(HEADLESS["rows"], "uint8", data, [[6, 1], [2, 3]], pieces, size)


@pytest.mark.parametrize("layout", HEADED)
def test_B22_the_upper_heads_are_those_of_both_k_and_v(layout: str) -> None:
    head = np.arange(1, 5, dtype=np.int8).reshape(1, 1, 4, 1)
    k = np.tile(head, (3, 2, 1, 2))
    pool = HEADED[layout]([(k.view(np.uint8), (-k).view(np.uint8))], "int8")
    pieces = [Piece(0, part, 2, 2, Phase(), 8 * part, 4) for part in range(2)]
    staging = torch.full((1, 16), POISON, dtype=torch.uint8)
    pack(pool.parts, pool.index([[2]] if pool.block_tokens > 1 else [[4, 5]], 2), staging, pieces)
    assert staging.view(torch.int8).tolist() == [[3, 3, 4, 4] * 2 + [-3, -3, -4, -4] * 2]


def test_B22_a_pool_of_two_blocks_must_say_where_k_and_v_lie() -> None:
    kv = [torch.zeros(2, 2, 16, 4, 8, dtype=torch.bfloat16)]
    with pytest.raises(PoolError, match="split='axis0' for"):
        PagedCache.blocks(kv, order="NHD")
    first, second = (PagedCache.blocks(kv, order="NHD", split=s) for s in ("axis0", "axis1"))
    assert first.parts[0][1].storage_offset() == kv[0].stride(0) * 2
    assert second.parts[0][1].storage_offset() == kv[0].stride(1) * 2
    three = torch.zeros(3, 2, 16, 4, 8, dtype=torch.bfloat16)
    assert PagedCache.blocks([three], order="NHD").block_count == 3
    with pytest.raises(PoolError, match="split='axis0' wants 5, axis 0 of 2"):
        PagedCache.blocks([three], order="NHD", split="axis0")


@pytest.mark.parametrize("layout", ["slots", "HND-packed", "allocation"])
def test_B65_bytes_declared_are_bytes_packed_where_v_is_narrower(layout: str) -> None:
    spec = KVSpec.mha(
        layers=2, kv_heads=2, head_dim=192, v_head_dim=128, dtype="bfloat16", page_tokens=4
    )
    data = coded_layers(2, (4, 2, 2), (384, 256))
    pool = HEADED[layout](data, "bfloat16")
    pool.check(spec, Box(Interval(0, 2), Interval(0, 2)))
    pieces, size = chunk_pieces(data, 4)
    assert size == spec.page_bytes
    check_both_ways(HEADED[layout], "bfloat16", data, [[2, 1]], pieces, size)
    with pytest.raises(PoolError, match="v rows of 256 bytes: want 384, 192 of bfloat16"):
        pool.check(
            KVSpec.mha(layers=2, kv_heads=2, head_dim=192, dtype="bfloat16", page_tokens=4),
            Box(Interval(0, 2), Interval(0, 2)),
        )


def test_B66_an_index_on_another_device_is_named() -> None:
    data = coded_layers(1, (4, 1, 2), (8, 8))
    pool = HEADED["slots"](data, "bfloat16")
    pieces, size = chunk_pieces(data, 2)
    staging = torch.zeros(1, size, dtype=torch.uint8)
    elsewhere = torch.zeros(1, 2, dtype=torch.int64, device="meta")
    with pytest.raises(PoolError, match="slots on device meta: want them on cpu"):
        pool.index(elsewhere, 2)
    for move in (pack, unpack):
        with pytest.raises(PoolError, match="index on meta: want it on cpu"):
            move(pool.parts, elsewhere, staging, pieces)


def test_B66_int32_int64_and_lists_give_equal_bytes() -> None:
    data = coded_layers(1, (8, 1, 2), (8, 8))
    pool = HEADED["slots"](data, "bfloat16")
    pieces, size = chunk_pieces(data, 2)
    slots = [[5, 2], [7, 0]]
    packed = []
    for form in (slots, torch.tensor(slots), torch.tensor(slots, dtype=torch.int32)):
        packed.append(torch.zeros(2, size, dtype=torch.uint8))
        pack(pool.parts, pool.index(form, 2), packed[-1], pieces)
    assert torch.equal(packed[0], packed[1])
    assert torch.equal(packed[0], packed[2])


@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [3]], ids=["one", "each", "ragged"])
@pytest.mark.parametrize("layout", ["slots", "HND-packed", "allocation"])
def test_B69_chunks_of_one_layer_or_many_hold_equal_pages(layout: str, cuts: list[int]) -> None:
    data = coded_layers(4, (5, 2, 2), (8, 8))
    pieces, size = chunk_pieces(data, 4, cuts=cuts, gap=8)
    check_both_ways(HEADED[layout], "float16", data, shuffled(5, 2, 2), pieces, size)
