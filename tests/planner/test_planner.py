"""Planner: exact ranges, places, keys and errors; the oracle next door has the bytes."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from unikv.errors import GridError
from unikv.geometry import Box, Interval, Phase, Piece
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.planner import Plan, plan_read, plan_write
from unikv.spec import KVSpec
from unikv.topology import Rank, Topology

PAGES = ["a0" * 32, "b1" * 32, "c2" * 32]
FOUR = KVSpec.mha(layers=2, kv_heads=4, head_dim=4, v_head_dim=2, dtype="int16", page_tokens=8)
SMOL = KVSpec.mha(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16", page_tokens=64)
NAMED = re.compile(r"(layers_per_chunk|heads_per_chunk)=(\d+(?: or \d+)*)")
MLA = KVSpec.mla(layers=8, dim=576, dtype="bfloat16", page_tokens=64)


def fmt_of(
    spec: KVSpec,
    *,
    layers: int | None = None,
    cuts: tuple[int, ...] | None = None,
    heads: int | None = None,
    phases: int = 1,
) -> ObjectFormat:
    namespace = Namespace(
        spec=spec,
        model="m",
        weights="unversioned",
        rope="none",
        layers_per_chunk=layers,
        layer_cuts=cuts,
        heads_per_chunk=heads,
        phases=phases,
    )
    return ObjectFormat.of(namespace)


def ranges(plan: Plan) -> list[tuple[str, int, int, int]]:
    """Return (key's end, start, stop, place) of each span of a page."""
    columns = zip(*(column.tolist() for column in plan.spans), strict=True)
    return [(plan.chunks[key].suffix, start, stop, place) for key, start, stop, place in columns]


def test_B22_a_rank_reads_whole_objects_of_its_own_heads() -> None:
    plan = plan_read(fmt_of(FOUR, heads=1), Topology(tp=2).rank(tp=1).box(FOUR))
    slab = 8 * 8 + 8 * 4  # 8 tokens of K (4 x int16), then 8 of V (2 x int16)
    assert ranges(plan) == [
        ("L0-2_H2", 0, 512 + 2 * slab, 0),
        ("L0-2_H3", 0, 512 + 2 * slab, 1024),
    ]
    assert (plan.read, plan.needed, plan.page_bytes) == (4 * slab, 4 * slab, 4096)


def test_B22_heads_of_a_shared_slab_are_picked_from_both_K_and_V() -> None:
    plan = plan_read(fmt_of(FOUR), Topology(tp=2).rank(tp=1).box(FOUR))
    slab = 4 * (8 * 8 + 8 * 4)
    assert ranges(plan) == [("L0-2_H0", 0, 512 + 2 * slab, 0)]
    k, v = 512, 512 + 4 * 8 * 8
    assert plan.pieces == (
        Piece(0, 0, 0, 2, Phase(), k + 2 * 8, 4 * 8),
        Piece(0, 1, 0, 2, Phase(), v + 2 * 4, 4 * 4),
        Piece(1, 0, 0, 2, Phase(), k + slab + 2 * 8, 4 * 8),
        Piece(1, 1, 0, 2, Phase(), v + slab + 2 * 4, 4 * 4),
    )
    assert (plan.read, plan.needed) == (2 * slab, slab)


def test_B57_a_part_of_a_chunk_is_its_header_and_the_wanted_slabs() -> None:
    fmt = fmt_of(MLA)
    slab = 64 * 1152
    tail = plan_read(fmt, Topology(pp=2).rank(pp=1).box(MLA))
    assert ranges(tail) == [
        ("L0-8", 0, 512, 0),
        ("L0-8", 512 + 4 * slab, 512 + 8 * slab, 512),
    ]
    assert (tail.first_slab, tail.slabs, tail.read, tail.needed) == ((4,), (4,), 4 * slab, 4 * slab)
    head = plan_read(fmt, Topology(pp=2).rank(pp=0).box(MLA))
    assert ranges(head) == [("L0-8", 0, 512 + 4 * slab, 0)]  # stored side by side: one range


def test_a_box_across_a_cut_takes_the_end_of_one_chunk_and_the_start_of_the_next() -> None:
    fmt = fmt_of(SMOL, layers=7, heads=1)
    plan = plan_read(fmt, Box(Interval(5, 15), Interval(2, 3)))
    assert [chunk.suffix for chunk in plan.chunks] == ["L0-7_H2", "L7-14_H2", "L14-21_H2"]
    assert (plan.first_slab, plan.slabs) == ((5, 0, 0), (2, 7, 1))
    slab = 2 * 64 * 128
    assert plan.place == (0, 512 + 2 * slab, 1024 + 9 * slab)
    assert plan.page_bytes == 1536 + 10 * slab + 2560  # up to a multiple of 4096


def test_a_ragged_last_chunk_holds_what_is_left() -> None:
    plan = plan_read(fmt_of(SMOL, layers=16), Box(Interval(0, 30), Interval(0, 3)))
    assert (plan.slabs, plan.read, plan.needed) == ((16, 14), SMOL.page_bytes, SMOL.page_bytes)


def test_an_empty_box_gives_an_empty_plan() -> None:
    for box in (Box(Interval(3, 3), Interval(0, 3)), Box(Interval(0, 30), Interval(3, 3))):
        for plan in (plan_read(fmt_of(SMOL), box), plan_write(fmt_of(SMOL), box)):
            assert (plan.chunks, plan.pieces, plan.page_bytes) == ((), (), 0)
            assert (plan.needed, plan.read, plan.keys(PAGES)) == (0, 0, [])
            assert [column.size for column in plan.expand(3)] == [0, 0, 0, 0]


def test_keys_stand_page_by_page_and_are_those_of_the_object_format() -> None:
    fmt = fmt_of(SMOL, layers=15, heads=1)
    plan = plan_read(fmt, Topology(tp=3, pp=1).rank(tp=1).box(SMOL))
    assert plan.keys(PAGES) == [fmt.key(page, chunk) for page in PAGES for chunk in plan.chunks]


def test_expanded_spans_repeat_one_page_with_its_own_keys_and_places() -> None:
    plan = plan_read(fmt_of(MLA, layers=4), Box(Interval(2, 8), Interval(0, 1)))
    one, three = plan.expand(1), plan.expand(3)
    assert [column.tolist() for column in one] == [column.tolist() for column in plan.spans]
    assert three.key.tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5]
    assert three.start.tolist() == plan.spans.start.tolist() * 3
    assert three.stop.tolist() == plan.spans.stop.tolist() * 3
    assert three.place.tolist() == [p + n * plan.page_bytes for n in range(3) for p in one.place]
    assert {column.dtype.str for column in three} == {"<i8"}
    assert plan.expand(0).key.size == 0


def test_a_pool_of_all_tokens_gathers_them_from_every_phase() -> None:
    plan = plan_read(fmt_of(FOUR, phases=4), Box(Interval(0, 1), Interval(0, 4)))
    assert [piece.phase for piece in plan.pieces[::2]] == [Phase(f, 4) for f in range(4)]


def test_a_pool_of_one_phase_counts_only_its_own_tokens() -> None:
    fmt = fmt_of(FOUR, phases=4)
    fine = plan_write(fmt, Box(Interval(0, 2), Interval(0, 4), Phase(3, 4)))
    assert [chunk.suffix for chunk in fine.chunks] == ["L0-2_H0_T3"]
    assert {piece.phase for piece in fine.pieces} == {Phase()}
    coarse = plan_read(fmt, Box(Interval(0, 2), Interval(0, 4), Phase(1, 2)))
    assert [chunk.suffix for chunk in coarse.chunks] == ["L0-2_H0_T1", "L0-2_H0_T3"]
    assert [piece.phase for piece in coarse.pieces[::4]] == [Phase(0, 2), Phase(1, 2)]
    assert coarse.needed == coarse.read == FOUR.page_bytes // 2


@pytest.mark.parametrize(
    ("layers", "heads", "topology", "stage", "message"),
    [
        (15, 1, "tp3,pp3:11-10-9", 1, "layers_per_chunk=1 or layer_cuts=(0, 11, 21, 30)"),
        (15, 1, "tp3,pp3:15-10-5", 2, "layers_per_chunk=25 or 5 or 1 or layer_cuts=(0, 25, 30)"),
        (None, 3, "tp1,pp3", 1, "layers_per_chunk=10 or 5 or 2 or 1 or layer_cuts=(0, 10, 20, 30)"),
        (30, 1, "tp3,pp3", 2, "layers_per_chunk=20 or 10 or 5 or 1 or layer_cuts=(0, 20, 30)"),
        (10, 3, "tp3,pp3", 2, "heads_per_chunk=1"),
        (
            30,
            3,
            "tp3,pp2",
            1,
            "layers_per_chunk=15 or 5 or 3 or 1 or layer_cuts=(0, 15, 30), and heads_per_chunk=1",
        ),
    ],
)
def test_a_writer_of_parts_is_told_grids_that_fit(
    layers: int | None, heads: int, topology: str, stage: int, message: str
) -> None:
    fmt = fmt_of(SMOL, layers=layers, heads=heads)
    with pytest.raises(GridError, match=re.escape(f"fit this rank: {message}") + "$"):
        plan_write(fmt, Rank(Topology.parse(topology), pp=stage).box(SMOL))


def test_a_writer_of_parts_is_told_its_box_and_the_chunk() -> None:
    text = (
        "a rank with layers 11..21 and heads 1..2 would own only a part of chunk L0-15_H1 "
        "(layers 0..15, heads 1..2) and cannot write it"
    )
    box = Topology.parse("tp3,pp3:11-10-9").rank(tp=1, pp=1).box(SMOL)
    with pytest.raises(GridError, match=re.escape(text)):
        plan_write(fmt_of(SMOL, layers=15, heads=1), box)


@given(st.data())
def test_every_grid_that_an_error_names_does_fit(data: st.DataObject) -> None:
    spec = KVSpec.mha(layers=12, kv_heads=12, head_dim=1, dtype="int8", page_tokens=1)
    first, last = sorted(data.draw(st.sets(st.integers(0, 12), min_size=2, max_size=2)))
    low, high = sorted(data.draw(st.sets(st.integers(0, 12), min_size=2, max_size=2)))
    box = Box(Interval(first, last), Interval(low, high))
    assume(box != Box(Interval(0, 12), Interval(0, 12)))
    with pytest.raises(GridError) as caught:
        plan_write(fmt_of(spec), box)
    text = str(caught.value).split("Grids that fit this rank: ")[1]
    named = {name: words.split(" or ") for name, words in NAMED.findall(text)}
    cuts = re.search(r"layer_cuts=\(([\d, ]+)\)", text)
    for heads in map(int, named.get("heads_per_chunk", ["12"])):
        for layers in map(int, named.get("layers_per_chunk", ["12"])):
            assert plan_write(fmt_of(spec, layers=layers, heads=heads), box).chunks
        if cuts:
            table = tuple(map(int, cuts[1].split(", ")))
            assert plan_write(fmt_of(spec, cuts=table, heads=heads), box).chunks


def test_a_writer_of_a_token_phase_needs_a_grid_with_phases() -> None:
    with pytest.raises(GridError, match=r"want a namespace with phases=2 "):
        plan_write(fmt_of(FOUR), Box(Interval(0, 2), Interval(0, 4), Phase(1, 2)))


def test_B83_B84_stripes_and_first_writers_share_out_every_page_once() -> None:
    ranks = Topology(tp=8).ranks()
    two = KVSpec.mha(layers=2, kv_heads=2, head_dim=4, dtype="int8", page_tokens=4)
    for spec, replicas in ((MLA, 8), (two, 4)):
        fmt = fmt_of(spec, heads=1)
        for page in PAGES:
            striped, first = [], []
            for rank in ranks:
                index, count = rank.replica(spec)
                assert count == replicas
                keys = plan_write(fmt, rank.box(spec)).keys([page])
                striped += keys if int(page[:16], 16) % count == index else []
                first += keys if index == 0 else []
            whole = [fmt.key(page, chunk) for chunk in fmt.grid.chunks]
            assert sorted(striped) == sorted(first) == sorted(whole)


def test_B100_objects_of_replicated_latents_are_as_long_for_every_topology() -> None:
    fmt = fmt_of(MLA)
    plans = [plan_write(fmt, Topology(tp=tp).rank(tp=tp - 1).box(MLA)) for tp in (1, 2, 4)]
    assert len({tuple(plan.spans.stop.tolist()) for plan in plans}) == 1
    assert {plan.read for plan in plans} == {MLA.page_bytes}
