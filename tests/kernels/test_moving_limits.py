"""What no mode, thread, address or staging may change about a move. It makes up no layouts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels.compare import index_of, shuffled
from tests.kernels.oracle import chunk_pieces, pack_slowly
from tests.kernels.pools import HEADED, POISON, check_content, coded_layers
from unikv.arena import Arena
from unikv.errors import PoolError
from unikv.geometry import Phase, Piece
from unikv.kernels import moving
from unikv.kernels.reference import Route, pack, unpack
from unikv.kernels.staging import Staging

DATA = coded_layers(2, (9, 2, 2), (8, 8))
PIECES, SIZE = chunk_pieces(DATA, 4, groups=2, gap=8)
TABLE = shuffled(9, 3, 2)
PACKED = pack_slowly(DATA, TABLE, PIECES, SIZE)
BOTH: list[Callable[..., None]] = [pack, unpack]


def poisoned(pages: int, size: int) -> Tensor:
    return torch.full((pages, size), POISON, dtype=torch.uint8)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("modes", list(product([False, True], repeat=4)), ids=str)
def test_inference_mode_may_come_and_go_between_calls(
    modes: tuple[bool, ...],
    shared: bool,  # noqa: FBT001 - pytest's own way
) -> None:
    """An engine's worker saves and loads in the mode, its other threads do so outside of it."""
    in_route, in_cut, *in_moves = modes
    pool = HEADED["slots"](DATA, "float16")
    index = index_of(pool, TABLE, 2)
    arena = Arena(1 << 16, shared=shared)
    slot = arena.take(1 << 15, 1 << 15)
    assert slot is not None
    with torch.inference_mode(mode=in_route):
        route = Route.of(pool.parts, PIECES)
    with torch.inference_mode(mode=in_cut):
        staging = slot.cut(8, 3, SIZE)
    arena.memory[slot.start : slot.start + slot.size] = bytes([POISON]) * slot.size
    for inside in [*in_moves, *in_moves]:
        with torch.inference_mode(mode=inside):
            route.pack(index, staging)
            route.unpack(index, staging)
        at = slot.start + 8
        assert bytes(arena.memory[at : at + 3 * SIZE]) == PACKED.tobytes()
        check_content(pool, DATA)


@pytest.mark.parametrize("step", [0, 1, 64, 127])
def test_staging_whose_pages_overlap_is_refused(step: int) -> None:
    pool = HEADED["NHD-axis0"](coded_layers(1, (4, 4, 4), (8, 8)), "float16")
    staging = poisoned(1, 512)[0].as_strided((2, 128), (step, 1))
    with pytest.raises(PoolError, match="staging"):
        pack(pool.parts, torch.tensor([[0], [2]]), staging, [Piece(0, 0, 0, 2, Phase(), 0, 16)])
    assert (staging == POISON).all()


@pytest.mark.parametrize("row_bytes", [0, 1, 15, -16])
@pytest.mark.parametrize("move", BOTH)
def test_rows_that_share_bytes_are_refused(row_bytes: int, move: Callable[..., None]) -> None:
    data = coded_layers(1, (4, 4, 4), (8, 8))
    pool = HEADED["NHD-axis0"](data, "float16")
    staging = poisoned(2, 128)
    with pytest.raises(PoolError, match="rows of 16 bytes or more"):
        move(
            pool.parts,
            torch.tensor([[0], [2]]),
            staging,
            [Piece(0, 0, 0, 2, Phase(), 64, row_bytes)],
        )
    assert (staging == POISON).all()
    check_content(pool, data)


@pytest.mark.parametrize("page_bytes", [0, 8])
@pytest.mark.parametrize("move", BOTH)
def test_pieces_without_rows_move_nothing(page_bytes: int, move: Callable[..., None]) -> None:
    data = coded_layers(1, (4, 4, 4), (8, 8))
    pool = HEADED["NHD-axis0"](data, "float16")
    staging = poisoned(2, page_bytes)
    nobodys = Piece(0, 0, 0, 2, Phase(1, 2, 4), 0, 16)  # tokens 4..7 of pages of 4
    move(pool.parts, torch.tensor([[0], [2]]), staging, [nobodys])
    assert (staging == POISON).all()
    check_content(pool, data)


def test_storages_of_unlike_sizes_at_one_address_move_apart() -> None:
    memory = bytearray(np.arange(64 * 32, dtype=np.uint16).astype(np.uint8).tobytes())
    short = torch.frombuffer(memory, dtype=torch.uint8, count=63 * 32 + 16)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    k = short.as_strided((64, 1, 1, 16), (32, 16, 16, 1))
    v = whole.as_strided((64, 1, 1, 16), (32, 16, 16, 1), 16)
    pieces = [Piece(0, part, 0, 1, Phase(), 32 * part, 16) for part in range(2)]
    index, staging = torch.tensor([[1, 2], [3, 63]]), poisoned(2, 64)
    pack([[k, v]], index, staging, pieces)
    expected = torch.cat([k[index].reshape(2, 32), v[index].reshape(2, 32)], 1)
    assert torch.equal(staging, expected)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_addresses_beyond_32_bits_are_reached(
    order: str,
    shift: int,
    at_end: bool,  # noqa: FBT001 - pytest's own way
) -> None:
    """Of 5 GiB that nobody touches only the rows moved are ever in memory."""
    blocks, tokens, heads, width = 5 << 17, 8, 4, 256
    memory = torch.empty(blocks * tokens * heads * width + 8, dtype=torch.uint8)
    steps = (heads * width, width) if order == "NHD" else (width, tokens * width)
    strides = (tokens * heads * width, *steps, 1)
    pool = memory.as_strided((blocks, tokens, heads, width), strides, shift)
    index = torch.tensor([[blocks - 1, 3], [blocks // 2, 5]])
    index = index if at_end else index.flip(1) - 2
    pieces = [Piece(0, 0, 0, heads, Phase(), 0, heads * width)]
    random = np.random.default_rng(0).integers(0, 256, (2, 2 * tokens * heads * width), np.uint8)
    staging, back = torch.from_numpy(random), torch.zeros(random.shape, dtype=torch.uint8)
    route = Route.of([[pool]], pieces)
    route.unpack(index, Staging.of(staging))
    assert torch.equal(pool[index].reshape(2, -1), staging)
    route.pack(index, Staging.of(back))
    assert torch.equal(back, staging)


def test_threads_that_share_a_route_from_its_first_call_move_their_own_bytes() -> None:
    pool = HEADED["HND-axis1"](DATA, "float16")
    route = Route.of(pool.parts, PIECES)
    arena, start, wrong = Arena(1 << 20), Barrier(6), list[str]()
    moving.compiled.cache_clear()

    def move(number: int) -> None:
        slot = arena.take(1 << 13, 1 << 13)
        assert slot is not None
        start.wait()
        for turn in range(40):
            table = shuffled(9, 3, 2, seed=100 * number + turn)
            staging = slot.cut(number + turn % 8, 3, SIZE)  # another alignment each time
            staging.tensor.fill_(POISON)
            route.pack(index_of(pool, table, 2), staging)
            if not np.array_equal(staging.tensor.numpy(), pack_slowly(DATA, table, PIECES, SIZE)):
                wrong.append(f"thread {number}, turn {turn}")
            route.unpack(index_of(pool, table, 2), staging)  # what is there already

    threads = [Thread(target=move, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    check_content(pool, DATA)


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("mode", [default_device, default_dtype])
def test_defaults_of_torch_change_no_byte(mode: Callable[[], Iterator[None]]) -> None:
    pool = HEADED["slots"](DATA, "float16")
    index, staging = index_of(pool, TABLE, 2), poisoned(3, SIZE)
    with mode():  # type: ignore[attr-defined] # contextmanager's own
        route = Route.of(pool.parts, PIECES)
        route.pack(index, Staging.of(staging))
        route.unpack(index, Staging.of(staging))
    assert np.array_equal(staging.numpy(), PACKED)
    check_content(pool, DATA)


def test_slots_in_lists_are_read_where_torch_makes_its_tensors_elsewhere() -> None:
    pool = HEADED["slots"](DATA, "float16")
    with default_device():
        index = pool.index([[4, 5], [0, 1]], 2)
    assert index.tolist() == [[4, 5], [0, 1]]


def test_staging_outlives_its_arena() -> None:
    pool = HEADED["slots"](DATA, "float16")
    arena = Arena(1 << 16)
    slot = arena.take(1 << 15, 1 << 15)
    assert slot is not None
    staging = slot.cut(0, 3, SIZE)
    staging.tensor.fill_(POISON)
    arena.close()
    Route.of(pool.parts, PIECES).pack(index_of(pool, TABLE, 2), staging)
    assert np.array_equal(staging.tensor.numpy(), PACKED)


@pytest.mark.parametrize("used", [False, True])
def test_a_slot_of_a_closed_arena_is_not_cut(used: bool) -> None:  # noqa: FBT001 - pytest's own way
    arena = Arena(1 << 16)
    slot = arena.take(1 << 15, 1 << 15)
    assert slot is not None
    if used:
        slot.cut(0, 1, 8)
    arena.close()
    with pytest.raises(PoolError, match="closed"):
        slot.cut(0, 1, 8)


@pytest.mark.parametrize("cut", [(-8, 1, 8), (0, -1, 8), (0, 1, -8)], ids=str)
def test_a_slot_is_cut_within_itself_alone(cut: tuple[int, int, int]) -> None:
    arena = Arena(1 << 16)
    slot = arena.take(1 << 15, 1 << 15)
    assert slot is not None
    with pytest.raises(PoolError):
        slot.cut(*cut)
