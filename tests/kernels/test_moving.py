"""One call moves all: TorchScript, the same lines where torch has none, and what is made for it."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels.compare import check_both_ways, index_of, shuffled
from tests.kernels.oracle import chunk_pieces, pack_slowly
from tests.kernels.pools import HEADED, HEADLESS, POISON, coded_layers
from unikv.geometry import Phase, Piece
from unikv.kernels import moving, reference
from unikv.kernels.reference import Route
from unikv.kernels.staging import Staging


def test_torch_of_this_machine_compiles_it() -> None:
    assert isinstance(moving.compiled(), torch.jit.ScriptFunction)


@pytest.mark.parametrize("layout", [*HEADED, *HEADLESS])
def test_the_same_lines_move_bit_for_bit_as_python(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "compiled", lambda: moving.move)
    headed = layout in HEADED
    data = coded_layers(3, (9, 2, 2 if headed else 1), (8, 8) if headed else (6,))
    pieces, size = chunk_pieces(data, 4, cuts=[1], gap=8)
    for table in (shuffled(9, 3, 2), [[0, 1], [4, 5]]):
        check_both_ways((HEADED | HEADLESS)[layout], "float16", data, table, pieces, size)


def test_without_torchscript_python_is_what_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit, "CompilationUnit")
    moving.compiled.cache_clear()
    try:
        assert moving.compiled() is moving.move
    finally:
        monkeypatch.undo()
        moving.compiled.cache_clear()


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's own
    """Counts the torch operations of a block: each one lets go of the interpreter's lock."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's own
        self.calls: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN204 - torch's own signature
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", ["slots", "NHD-axis0", "HND-packed"])
def test_a_transfer_of_any_size_is_one_call_of_torch(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = coded_layers(40, (12, 2, 4), (8, 8))
    pieces, size = chunk_pieces(data, 4, groups=2, cuts=[10, 20], gap=8)
    pool = HEADED[layout](data, "float16")
    route = Route.of(pool.parts, pieces)
    index = index_of(pool, shuffled(12, 3, 2), 2)
    staging = Staging.of(torch.zeros((3, size), dtype=torch.uint8))
    moved = []

    def note(*_: object) -> tuple[int, int, list[torch.Tensor]]:
        moved.append(1)
        return 0, 0, []

    monkeypatch.setattr(reference, "compiled", lambda: note)
    route.pack(index, staging)  # the memory's words are viewed once
    route.unpack(index, staging)
    with Counter() as counter:
        route.pack(index, staging.rows(0, 3))
        route.unpack(index, staging.rows(0, 3))
    assert len(moved) == 4
    assert counter.calls == []


@pytest.mark.parametrize("shift", range(9))
@pytest.mark.parametrize("stride", [0, 1, 4])
def test_one_route_serves_staging_of_any_alignment(shift: int, stride: int) -> None:
    data = coded_layers(2, (9, 2, 2), (8, 8))
    pieces, size = chunk_pieces(data, 4, groups=2, gap=8)
    table = shuffled(9, 3, 2)
    expected = torch.from_numpy(pack_slowly(data, table, pieces, size))
    pool = HEADED["NHD-axis0"](data, "float16")
    route = Route.of(pool.parts, pieces)

    def staging() -> Tensor:
        memory = torch.full((3 * (size + stride) + 16,), POISON, dtype=torch.uint8)
        return memory[shift:].as_strided((3, size), (size + stride, 1), shift)

    index = index_of(pool, table, 2)
    packed = staging()
    route.pack(index, Staging.of(packed))
    assert torch.equal(packed, expected)
    for view in (view for views in pool.parts for view in views):
        view.fill_(POISON)
    route.unpack(index, Staging.of(packed))
    again = staging()
    route.pack(index, Staging.of(again))
    assert torch.equal(again, expected)


def test_pools_made_in_inference_mode_are_filled_outside_of_it() -> None:
    """Engines allocate their pools so; a load comes from a thread that knows no such mode."""
    data = coded_layers(2, (9, 2, 2), (8, 8))
    pieces, size = chunk_pieces(data, 4, groups=2, gap=8)
    with torch.inference_mode():
        check_both_ways(HEADED["slots"], "float16", data, shuffled(9, 3, 2), pieces, size)
        pool = HEADED["slots"](data, "float16")
    index = index_of(pool, shuffled(9, 3, 2), 2)
    staging = Staging.of(torch.full((3, size), POISON, dtype=torch.uint8))
    route = Route.of(pool.parts, pieces)
    route.unpack(index, staging)
    route.pack(index, again := Staging.of(torch.zeros((3, size), dtype=torch.uint8)))
    moved = torch.zeros(size, dtype=torch.bool)
    for piece in pieces:
        moved[piece.offset : piece.offset + 4 * piece.row_bytes] = True
    assert (again.tensor[:, moved] == POISON).all()


@pytest.mark.parametrize("modes", list(product((False, True), repeat=3)), ids=str)
def test_one_route_serves_calls_in_and_out_of_inference_mode(modes: tuple[bool, ...]) -> None:
    """Whichever comes first makes the views that all others use."""
    data = coded_layers(2, (9, 2, 2), (8, 8))
    pieces, size = chunk_pieces(data, 4, groups=2, gap=8)
    table = shuffled(9, 3, 2)
    expected = torch.from_numpy(pack_slowly(data, table, pieces, size))
    pool = HEADED["slots"](data, "float16")
    index = index_of(pool, table, 2)
    staging = Staging.of(torch.full((3, size), POISON, dtype=torch.uint8))
    with torch.inference_mode(modes[0]):
        route = Route.of(pool.parts, pieces)
    with torch.inference_mode(modes[1]):
        route.pack(index, staging)
    with torch.inference_mode(modes[2]):
        route.unpack(index, staging)
        route.pack(index, staging)
    assert torch.equal(staging.tensor, expected)


def test_pages_of_no_bytes_move_nothing() -> None:
    data = coded_layers(1, (9, 4, 2), (8, 8))
    pool = HEADED["NHD-axis0"](data, "float16")
    none = Piece(0, 0, 0, 2, Phase(1, 2, 4), 0, 16)  # of a page of 4 tokens
    staging = Staging.of(torch.empty((2, 0), dtype=torch.uint8))
    Route.of(pool.parts, [none]).pack(torch.tensor([[0], [1]]), staging)


def test_k_and_v_of_two_storages_at_one_address_are_no_pair() -> None:
    """As `torch.frombuffer` makes them: one is shorter than where the other's rows lie."""
    memory = bytearray(range(128))
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    short = torch.frombuffer(memory, dtype=torch.uint8, count=104)
    shape, strides = (4, 1, 1, 8), (32, 32, 8, 1)
    parts = [[short.as_strided(shape, strides, 0), whole.as_strided(shape, strides, 16)]]
    pieces = [Piece(0, part, 0, 1, Phase(), 8 * part, 8) for part in (0, 1)]
    staging = torch.zeros((4, 16), dtype=torch.uint8)
    reference.pack(parts, torch.arange(4).view(4, 1), staging, pieces)
    wanted = torch.cat([parts[0][0].reshape(4, 8), parts[0][1].reshape(4, 8)], dim=1)
    assert torch.equal(staging, wanted)
