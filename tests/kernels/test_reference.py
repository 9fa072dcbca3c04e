"""Pack and unpack against the oracle: layouts, dtypes, odd sizes, phases and any pieces."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.compare import check_both_ways, shuffled
from tests.kernels.oracle import chunk_pieces
from tests.kernels.pools import HEADED, HEADLESS, UNEQUAL, Layers, coded_layers
from unikv.geometry import Phase, Piece
from unikv.kernels import reference
from unikv.spec import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", HEADED)
def test_each_layout_and_dtype_moves_bit_for_bit(layout: str, dtype: str) -> None:
    width = 3 * DTYPES[dtype]
    data = coded_layers(2, (9, 2, 4), (width, width))
    pieces, size = chunk_pieces(data, 4, groups=2, cuts=[1], gap=16)
    check_both_ways(HEADED[layout], dtype, data, shuffled(9, 3, 2), pieces, size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", HEADLESS)
def test_rows_without_heads_move_bit_for_bit(layout: str, dtype: str) -> None:
    data = coded_layers(3, (9, 2, 1), (5 * DTYPES[dtype],))
    pieces, size = chunk_pieces(data, 4, cuts=[2], gap=8)
    check_both_ways(HEADLESS[layout], dtype, data, shuffled(9, 3, 2), pieces, size)


@pytest.mark.parametrize("blocks_a_page", [1, 2, 4])
@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("dim", [1, 3, 5, 64, 66])
def test_odd_sizes_move_bit_for_bit(dim: int, heads: int, block: int, blocks_a_page: int) -> None:
    data = coded_layers(1, (9, block, heads), (2 * dim, 2 * dim))
    pieces, size = chunk_pieces(data, block * blocks_a_page, groups=heads, gap=6)
    for layout in ("slots", "NHD-axis1", "HND-packed"):
        table = shuffled(9, 2, blocks_a_page)
        check_both_ways(HEADED[layout], "bfloat16", data, table, pieces, size)


@pytest.mark.parametrize("widths", [(10, 6), (192, 128), (64, 2)], ids=str)
@pytest.mark.parametrize("layout", UNEQUAL)
def test_k_and_v_of_different_dims_move_bit_for_bit(layout: str, widths: tuple[int, int]) -> None:
    data = coded_layers(2, (7, 2, 4), widths)
    pieces, size = chunk_pieces(data, 4, groups=4, gap=2)
    check_both_ways(UNEQUAL[layout], "bfloat16", data, shuffled(7, 3, 2), pieces, size)


TABLES = {
    "pages in order": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "pages swapped": [[4, 5, 6, 7], [0, 1, 2, 3]],
    "pages off their size": [[1, 2, 3, 4], [5, 6, 7, 8]],
    "pairs": [[6, 7, 2, 3], [0, 1, 8, 9]],
    "every second": [[0, 2, 4, 6], [1, 3, 5, 7]],
    "backwards": [[3, 2, 1, 0], [7, 6, 5, 4]],
    "one page apart": [[0, 1, 2, 3], [9, 4, 8, 5]],
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("layout", HEADED)
def test_runs_of_blocks_change_no_byte(layout: str, name: str) -> None:
    data = coded_layers(2, (10, 2, 2), (8, 8))
    pieces, size = chunk_pieces(data, 8, groups=2, gap=8)
    check_both_ways(HEADED[layout], "float16", data, TABLES[name], pieces, size)


@pytest.mark.parametrize(
    ("phases", "interleave"), [(2, 1), (4, 1), (2, 2), (2, 4), (4, 2), (8, 1)], ids=str
)
@pytest.mark.parametrize("layout", [*HEADED, "rows", "row-blocks"])
def test_token_phases_of_a_page_are_cut_and_joined(
    layout: str, phases: int, interleave: int
) -> None:
    headed = layout in HEADED
    data = coded_layers(2, (10, 2, 2 if headed else 1), (8, 8) if headed else (8,))
    pieces, size = chunk_pieces(data, 8, phases=phases, interleave=interleave, gap=8)
    make = (HEADED | HEADLESS)[layout]
    for table in ([[0, 1, 2, 3], [6, 7, 8, 9]], shuffled(10, 2, 4)):
        check_both_ways(make, "float16", data, table, pieces, size)
        check_both_ways(make, "float16", data, table, pieces[1::2], size)


@pytest.mark.parametrize("scratch", [8, 64, 1000])
@pytest.mark.parametrize("layout", ["slots", "HND-packed", "NHD-axis0"])
def test_a_scratch_of_any_size_changes_no_byte(
    layout: str, scratch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "SCRATCH_BYTES", scratch)
    data = coded_layers(2, (12, 2, 2), (8, 8))
    pieces, size = chunk_pieces(data, 4, groups=2, gap=8)
    check_both_ways(HEADED[layout], "float16", data, shuffled(12, 5, 2), pieces, size)


@st.composite
def transfers(draw: st.DrawFn) -> tuple[str, Layers, list[list[int]], list[Piece], int]:
    """Draw a layout, its content, a block table, pieces that share no byte, and a page's bytes."""
    layout = draw(st.sampled_from(sorted(HEADED)))
    tokens, heads = draw(st.sampled_from([1, 2, 3, 4])), draw(st.integers(1, 5))
    k = 2 * draw(st.sampled_from([1, 2, 3, 4, 8]))
    v = 2 * draw(st.sampled_from([1, 3, 4])) if layout in UNEQUAL else k
    pages, page_blocks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    blocks = pages * page_blocks + draw(st.integers(0, 2))
    data = coded_layers(draw(st.integers(1, 2)), (blocks, tokens, heads), (k, v))
    rng = random.Random(draw(st.integers(0, 2**32)))
    table = shuffled(blocks, pages, page_blocks, rng.randrange(2**32))
    if draw(st.booleans()):
        table = [sorted(row) for row in table]
    phases = draw(st.sampled_from([1, 1, 2, 3]))
    interleave = draw(st.sampled_from([1, 2]))
    pieces, at = list[Piece](), draw(st.integers(0, 9))
    for layer in range(len(data)):
        for part, width in enumerate((k, v)):
            for index in range(phases):
                phase = Phase(index, phases, interleave)
                rows = len(phase.tokens(page_blocks * tokens))
                head = 0
                while head < heads:
                    some = rng.randint(1, heads - head)
                    if rng.random() < 0.8:
                        row = some * width + rng.choice([0, 0, 2, 3, 8])
                        pieces.append(Piece(layer, part, head, some, phase, at, row))
                        at += rows * row + rng.choice([0, 0, 1, 8])
                    head += some
    rng.shuffle(pieces)
    return layout, data, table, pieces, at + draw(st.integers(0, 3))


@given(transfers())
def test_any_pieces_move_bit_for_bit(
    transfer: tuple[str, Layers, list[list[int]], list[Piece], int],
) -> None:
    layout, data, table, pieces, size = transfer
    check_both_ways(HEADED[layout], "bfloat16", data, table, pieces, size)
