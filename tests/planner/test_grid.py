"""Grid: names, order and bytes of the chunks of a page, and which of them hold a box."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.errors import GridError
from unikv.geometry import Box, Interval, Phase
from unikv.grid import Grid
from unikv.namespace import Namespace
from unikv.spec import KVSpec, StatePart

MHA = KVSpec.mha(layers=7, kv_heads=4, head_dim=4, v_head_dim=3, dtype="float16", page_tokens=12)
MLA = KVSpec.mla(layers=7, dim=5, dtype="bfloat16", page_tokens=12)
ROWS = KVSpec.rows(layers=3, row_bytes=7, rows_per_page=3, page_tokens=12)


def grid_of(
    spec: KVSpec,
    *,
    layers: int | None = None,
    heads: int | None = None,
    phases: int = 1,
    interleave: int = 1,
) -> Grid:
    return Grid.of(
        Namespace(
            spec=spec,
            model="m",
            weights="unversioned",
            rope="none",
            layers_per_chunk=layers,
            heads_per_chunk=heads,
            phases=phases,
            interleave=interleave,
        )
    )


def suffixes(grid: Grid, indices: list[int]) -> list[str]:
    return [grid.chunks[index].suffix for index in indices]


def test_chunks_are_ordered_by_group_then_layers_then_phase() -> None:
    grid = grid_of(MHA, layers=4, heads=2, phases=2)
    assert suffixes(grid, list(range(8))) == [
        "L0-4_H0_T0",
        "L0-4_H0_T1",
        "L4-7_H0_T0",
        "L4-7_H0_T1",
        "L0-4_H1_T0",
        "L0-4_H1_T1",
        "L4-7_H1_T0",
        "L4-7_H1_T1",
    ]
    assert [chunk.index for chunk in grid.chunks] == list(range(8))
    last = grid.chunks[7]
    assert (last.layers, last.heads, last.group, last.phase) == (
        Interval(4, 7),
        Interval(2, 4),
        1,
        1,
    )


@pytest.mark.parametrize(
    ("spec", "phases", "names"),
    [
        (MHA, 1, ["L0-7_H0"]),
        (MLA, 1, ["L0-7"]),
        (MLA, 3, ["L0-7_T0", "L0-7_T1", "L0-7_T2"]),
        (ROWS, 1, ["L0-3"]),
        (KVSpec.state(layers=2, parts=[StatePart("a", "int8", (4,))], page_tokens=4), 1, ["L0-2"]),
    ],
    ids=["mha", "mla", "mla in phases", "rows", "state of one group"],
)
def test_keys_name_groups_and_phases_only_where_there_are_some(
    spec: KVSpec, phases: int, names: list[str]
) -> None:
    grid = grid_of(spec, phases=phases)
    assert suffixes(grid, list(range(len(grid.chunks)))) == names
    assert grid.chunks[0].group == (0 if spec.has_heads else None)
    assert grid.chunks[0].phase == (0 if phases > 1 else None)


def test_a_slab_is_the_parts_of_one_layer_behind_each_other() -> None:
    grid = grid_of(MHA, layers=4, heads=2, phases=3)
    assert grid.part_offsets == ((0, 4, 16), (64, 4, 12))  # K rows of 2 heads x 8 B, V of 2 x 6 B
    assert grid.slab_bytes == 64 + 48
    assert [chunk.payload_bytes for chunk in grid.chunks[::3]] == [448, 336, 448, 336]
    assert [chunk.slabs for chunk in grid.chunks[::3]] == [4, 3, 4, 3]


def test_state_groups_have_slabs_of_their_own_parts() -> None:
    parts = [StatePart("conv", "float32", (8, 3)), StatePart("ssm", "int8", (4, 5))]
    grid = grid_of(KVSpec.state(layers=2, parts=parts, page_tokens=12, groups=4), heads=1)
    assert grid.part_offsets == ((0, 1, 24), (24, 1, 5))
    assert suffixes(grid, [0, 3]) == ["L0-2_H0", "L0-2_H3"]


def test_the_chunks_of_a_page_hold_the_page_once() -> None:
    for grid in (grid_of(MHA, layers=4, heads=1, phases=3), grid_of(MLA, layers=2), grid_of(ROWS)):
        assert sum(chunk.payload_bytes for chunk in grid.chunks) == grid.spec.page_bytes


def test_a_box_is_covered_by_the_chunks_that_hold_a_byte_of_it() -> None:
    grid = grid_of(MHA, layers=4, heads=2)
    box = Box(Interval(3, 5), Interval(1, 2))
    assert suffixes(grid, grid.covering(box)) == ["L0-4_H0", "L4-7_H0"]
    assert grid.covering(Box(Interval(4, 7), Interval(0, 4))) == [1, 3]
    assert grid.covering(Box(Interval(4, 4), Interval(0, 4))) == []
    assert grid.covering(Box(Interval(0, 7), Interval(4, 4))) == []


@given(st.data())
def test_covering_is_what_a_walk_over_all_chunks_finds(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    grid = grid_of(MHA, layers=size, heads=data.draw(st.sampled_from([1, 2, 4])), phases=4)
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, 7)] * 2)))
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, 4)] * 2)))
    count = data.draw(st.sampled_from([1, 2, 4]))
    box = Box(
        Interval(first, last),
        Interval(low, high),
        Phase(data.draw(st.integers(0, count - 1)), count),
    )
    assert grid.covering(box) == [
        chunk.index
        for chunk in grid.chunks
        if (chunk.layers & box.layers).size
        and (chunk.heads & box.heads).size
        and (chunk.phase or 0) % count == box.phase.index
    ]


@pytest.mark.parametrize(
    ("phase", "grid_phases", "interleave"),
    [(Phase(0, 2), 1, 1), (Phase(0, 2), 3, 1), (Phase(1, 4), 2, 1), (Phase(0, 2, 3), 2, 1)],
    ids=["uncut", "no divisor", "finer than the grid", "other interleave"],
)
def test_token_phases_that_the_grid_cannot_give_are_refused(
    phase: Phase, grid_phases: int, interleave: int
) -> None:
    grid = grid_of(MHA, phases=grid_phases, interleave=interleave)
    right = rf"want a namespace with phases={phase.count} .*, interleave={phase.interleave}$"
    with pytest.raises(GridError, match=rf"phases={grid_phases}, .*{right}"):
        grid.covering(Box(Interval(0, 7), Interval(0, 4), phase))


def test_rows_that_do_not_follow_tokens_have_no_phases() -> None:
    with pytest.raises(GridError, match="kind 'rows' do not follow tokens, want phase 0 of 1"):
        grid_of(ROWS).covering(Box(Interval(0, 3), Interval(0, 1), Phase(0, 2)))


@pytest.mark.parametrize(
    "box", [Box(Interval(0, 8), Interval(0, 4)), Box(Interval(0, 7), Interval(4, 5))]
)
def test_a_box_outside_the_spec_is_refused(box: Box) -> None:
    with pytest.raises(GridError, match=r"want layers within 0\.\.7 and heads within 0\.\.4"):
        grid_of(MHA).covering(box)
