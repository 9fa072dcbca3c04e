"""What pack and unpack refuse, and bytes that a copy of numbers would change."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.compare import check_both_ways, index_of, shuffled
from tests.kernels.oracle import chunk_pieces, pack_slowly
from tests.kernels.pools import HEADED, POISON, Layers, coded_layers, memory
from unikv.errors import PoolError
from unikv.geometry import Phase, Piece
from unikv.kernels.combs import cut_strips
from unikv.kernels.reference import pack, unpack

GOOD = Piece(0, 0, 0, 2, Phase(), 0, 16)
INDEX = torch.tensor([[0], [2]])


def staging(pages: int = 2, size: int = 128) -> torch.Tensor:
    return torch.full((pages, size), POISON, dtype=torch.uint8)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "index dtype": ({"index": INDEX.int()}, "index of torch.int32"),
    "index axes": ({"index": INDEX[0]}, r"index of torch.int64 \(1,\)"),
    "index without blocks": ({"index": INDEX[:, :0]}, r"\(2, 0\): want int64"),
    "index above": ({"index": INDEX + 2}, "index of blocks 2..4: want them in 0..3"),
    "index below": ({"index": INDEX - 1}, r"index of blocks -1..1"),
    "staging dtype": ({"staging": staging().to(torch.int8)}, "staging of torch.int8"),
    "staging axes": ({"staging": staging()[0]}, r"staging of torch.uint8 \(128,\)"),
    "staging stride": ({"staging": staging(128, 2).t()}, r"strides \(1, 2\): want uint8"),
    "staging pages": ({"staging": staging(3)}, "staging of 3 pages: want 2"),
    "staging overlaps": (
        {"staging": staging(3).flatten().as_strided((2, 128), (64, 1))},
        "pages 64 bytes apart: want 128",
    ),
    "staging device": ({"staging": staging().to("meta")}, "index on cpu: want it on meta"),
    "layer": ({"pieces": [GOOD, GOOD._replace(layer=1)]}, "layer 1, part 0: want one of 1 layers"),
    "part": ({"pieces": [GOOD, GOOD._replace(part=2)]}, "layer 0, part 2"),
    "heads": ({"pieces": [GOOD, GOOD._replace(head=2, heads=3)]}, "heads 0..5: want them in 0..4"),
    "no heads": (
        {"pieces": [GOOD, GOOD._replace(head=2, heads=0)]},
        "piece of 0 heads: want 1 or more",
    ),
    "behind staging": ({"pieces": [GOOD, GOOD._replace(part=1, offset=66)]}, "bytes 66..130"),
    "before staging": ({"pieces": [GOOD, GOOD._replace(part=1, offset=-2)]}, "bytes -2..62"),
    "rows of nothing": ({"pieces": [GOOD, GOOD._replace(part=1, row_bytes=0)]}, "rows of 16 bytes"),
    "narrow rows": ({"pieces": [GOOD, GOOD._replace(part=1, row_bytes=8)]}, "rows of 16 bytes or"),
}


@pytest.mark.parametrize("move", [pack, unpack])
@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_fit_are_refused_before_anything_moves(
    name: str, move: Callable[..., None]
) -> None:
    changed, message = REFUSED[name]
    pool = HEADED["NHD-axis0"](coded_layers(1, (4, 4, 4), (8, 8)), "float16")
    before = [storage.clone() for storage in memory(pool)]
    given: dict[str, Any] = {"index": INDEX, "staging": staging(), "pieces": [GOOD]} | changed
    with pytest.raises(PoolError, match=message):
        move(pool.parts, given["index"], given["staging"], given["pieces"])
    assert all(map(torch.equal, memory(pool), before))
    if not given["staging"].is_meta:
        assert (given["staging"].view(torch.uint8) == POISON).all()


def test_no_pages_and_no_pieces_move_nothing() -> None:
    data = coded_layers(1, (4, 4, 4), (8, 8))
    check_both_ways(HEADED["HND-packed"], "float16", data, [[1], [2]], [], 16)
    pool = HEADED["HND-packed"](data, "float16")
    for move in (pack, unpack):
        move(pool.parts, torch.empty(0, 1, dtype=torch.int64), staging(0), [GOOD])


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's own signature
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)  # noqa: FBT003 - torch's own signature


@contextmanager
def flushed() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "plain": torch.enable_grad,
    "inference": torch.inference_mode,
    "deterministic": deterministic,
    "denormals flushed": flushed,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["slots", "HND-packed", "NHD-axis1"])
def test_signalling_nans_and_subnormals_stay_as_they_are(layout: str, mode: str) -> None:
    doubles = [0x7FF0000000000001, 0xFFF4000000000000, 1, 0x8000000000000001, 0x7FF8DEAD0000BEEF]
    content = np.resize(np.array(doubles, dtype=np.uint64), 6 * 4 * 2 * 8).view(np.uint8)
    data: Layers = [(content.reshape(6, 4, 2, 64), content[::-1].reshape(6, 4, 2, 64))]
    pieces, size = chunk_pieces(data, 8, groups=2)
    with MODES[mode]():
        check_both_ways(HEADED[layout], "bfloat16", data, shuffled(6, 2, 2), pieces, size)


def test_every_16_bit_pattern_survives() -> None:
    content = np.arange(2**16, dtype=np.uint16).view(np.uint8).reshape(64, 16, 2, 64)
    data: Layers = [(content, content[::-1])]
    pieces, size = chunk_pieces(data, 16)
    check_both_ways(HEADED["slots"], "float16", data, shuffled(64, 20, 1), pieces, size)


@pytest.mark.parametrize("skip", range(9))
def test_memory_at_any_address_is_moved(skip: int) -> None:
    data = coded_layers(1, (4, 2, 2), (8, 8))
    pool = HEADED["slots"](data, "uint8")
    pieces, size = chunk_pieces(data, 4)
    index = index_of(pool, [[2, 0]], 2)
    aligned, shifted = staging(1, size), staging(1, size + 16)[:, skip : skip + size]
    pack(pool.parts, index, aligned, pieces)
    pack(pool.parts, index, shifted, pieces)
    assert torch.equal(aligned, shifted)
    raw = torch.zeros(300, dtype=torch.uint8).numpy()
    moved = [
        torch.frombuffer(raw, dtype=torch.uint8, offset=skip + 150 * part, count=128)
        for part in range(2)
    ]
    views = [[flat.view(16, 1, 1, 8) for flat in moved]]
    whole = [Piece(0, part, 0, 1, Phase(), 8 * part, 16) for part in range(2)]
    rows = torch.tensor([[2, 9, 4, 1]])
    unpack(views, rows, aligned[:, :64], whole)
    assert torch.equal(moved[0].view(16, 8)[rows[0]], aligned[0, :64].view(4, 16)[:, :8])
    assert torch.equal(moved[1].view(16, 8)[rows[0]], aligned[0, :64].view(4, 16)[:, 8:])
    assert int((moved[0].view(16, 8) == 0).all(1).sum()) == 12


def test_chunks_that_differ_in_heads_alone_move_in_one_copy() -> None:
    data = coded_layers(2, (4, 2, 8), (16, 16))
    strips = list(cut_strips(chunk_pieces(data, 4, groups=4, cuts=[1], gap=24)[0]))
    assert [(s.layer, s.part, s.head, s.heads) for s in strips] == [
        (0, 0, 0, 8), (0, 1, 0, 8), (1, 0, 0, 8), (1, 1, 0, 8),
    ]  # fmt: skip
    assert all(len(strip.combs) == 1 for strip in strips)
    assert strips[0].combs[0].groups == 4


@pytest.mark.parametrize("offsets", [(0, 64, 128), (0, 64, 192), (128, 64, 0), (64, 0, 128)])
def test_chunks_at_any_distance_are_found(offsets: tuple[int, ...]) -> None:
    data = coded_layers(1, (4, 2, 3), (16, 16))
    pieces = [
        Piece(0, part, head, 1, Phase(), 256 * part + offset, 16)
        for part in range(2)
        for head, offset in enumerate(offsets)
    ]
    check_both_ways(HEADED["slots"], "bfloat16", data, [[2, 1], [3, 0]], pieces, 512)


def test_one_row_may_be_packed_for_many() -> None:
    data = coded_layers(1, (4, 1, 2), (8, 8))
    pool = HEADED["slots"](data, "bfloat16")
    pieces, size = chunk_pieces(data, 3)
    target = staging(2, size)
    pack(pool.parts, pool.index([[2, 2, 2], [2, 1, 2]], 3), target, pieces)
    expected = pack_slowly(data, [[2, 2, 2], [2, 1, 2]], pieces, size)
    assert torch.equal(target, torch.from_numpy(expected))


def test_heads_that_are_not_adjacent_move_apart() -> None:
    pieces = [Piece(0, 0, head, 1, Phase(), 16 * head, 16) for head in (5, 0, 2, 1)]
    assert [(s.head, s.heads, len(s.combs)) for s in cut_strips(pieces)] == [
        (0, 3, 1), (5, 1, 1),
    ]  # fmt: skip
