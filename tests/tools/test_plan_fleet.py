"""The common cut of a fleet: known answers, that no coarser one works, and what is near."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.tools.plans import DEEPSEEK, HYBRID, LLAMA, SMOL, fleet, fleets
from unikv.cut import Cut, cut_page
from unikv.errors import GridError, SpecError, TopologyError
from unikv.fleet import Deployment, common_cut, find_misfits, repage, suggest
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.planner import plan_read, plan_write
from unikv.spec import KVSpec
from unikv.topology import Topology


def form(spec: KVSpec, cut: Cut) -> ObjectFormat:
    weights = "unversioned"
    namespace = Namespace(spec=spec, weights=weights, rope="none", model="m", **cut._asdict())
    return ObjectFormat.keyless(namespace)


def works(spec: KVSpec, some: list[Deployment], cut: Cut) -> bool:
    """Whether every rank of every deployment can do its part, as the planner sees it."""
    objects = form(spec, cut)
    try:
        for topology, writes in some:
            for rank in topology.ranks():
                (plan_write if writes else plan_read)(objects, rank.box(spec))
    except GridError:
        return False
    return True


def always(_: KVSpec, __: Cut) -> bool:
    return True


@pytest.mark.parametrize(
    ("spec", "writers", "readers", "cut"),
    [
        (LLAMA, "tp1", "", Cut((0, 80), 8, 1, 1)),
        (LLAMA, "tp4,pp2 tp2 tp8,dcp2:16", "", Cut((0, 40, 80), 1, 2, 16)),
        (LLAMA, "tp4 tp2,pp4", "tp8,pp5", Cut((0, 20, 40, 60, 80), 2, 1, 1)),
        (LLAMA, "tp16,pp3:27-27-26 tp2,pp2,cp4", "", Cut((0, 27, 40, 54, 80), 1, 1, 1)),
        (LLAMA, "tp4,dcp2 tp1,dcp4", "", Cut((0, 80), 2, 4, 1)),
        (SMOL, "tp3,pp2 tp1", "tp6", Cut((0, 15, 30), 1, 1, 1)),
        (SMOL, "tp1,pp3:11-10-9 tp1,pp2", "tp3", Cut((0, 11, 15, 21, 30), 3, 1, 1)),
        (DEEPSEEK, "tp16,pp4:16-15-15-15 tp8,pp2:31-30", "", Cut((0, 16, 31, 46, 61), 1, 1, 1)),
        (DEEPSEEK, "tp8,dcp8:4 tp1", "tp3", Cut((0, 61), 1, 8, 4)),
        (HYBRID, "tp2,pp2:16-16 tp4,pp3:11-11-10", "", Cut((0, 2, 4, 5, 8), 1, 1, 1)),
        (HYBRID, "tp1,pp4:3-1-27-1", "", Cut((0, 1, 7, 8), 4, 1, 1)),
    ],
)
def test_known_fleets_have_known_cuts(spec: KVSpec, writers: str, readers: str, cut: Cut) -> None:
    assert common_cut(spec, fleet(writers, readers)) == cut


def test_the_order_of_a_fleet_changes_nothing() -> None:
    some = fleet("tp4,pp2 tp2 tp8,dcp2:16", "tp16")
    assert common_cut(LLAMA, some[::-1]) == common_cut(LLAMA, some)


def test_heads_of_six_and_four_go_together_in_twos() -> None:
    spec = KVSpec.mha(layers=2, kv_heads=12, head_dim=4, dtype="int8", page_tokens=4)
    assert common_cut(spec, fleet("tp2 tp3")).heads_per_chunk == 2


def test_only_the_tokens_of_a_reader_shape_the_cut() -> None:
    assert common_cut(LLAMA, fleet("tp1", "tp8,pp4,dcp2:8 tp2,dcp4:8")) == Cut((0, 80), 8, 4, 8)


def test_rows_that_follow_no_tokens_have_no_phases() -> None:
    spec = KVSpec.rows(layers=4, row_bytes=8, rows_per_page=3, page_tokens=64)
    assert common_cut(spec, fleet("tp1,dcp2 tp1,dcp4:16")) == Cut((0, 4), 1, 1, 1)


@given(fleets())
def test_every_writer_writes_and_every_reader_reads_by_the_common_cut(
    drawn: tuple[KVSpec, list[Deployment]],
) -> None:
    spec, some = drawn
    assert find_misfits(spec, some) == []
    assert works(spec, some, common_cut(spec, some))


@given(fleets())
def test_no_coarser_cut_works(drawn: tuple[KVSpec, list[Deployment]]) -> None:
    spec, some = drawn
    cut = common_cut(spec, some)
    ends = cut.layer_cuts
    coarser = [cut._replace(layer_cuts=(*ends[:at], *ends[at + 1 :])) for at in range(1, len(ends))]
    coarser = [one for one in coarser if one.layer_cuts[-1] == spec.layers]
    coarser += [
        cut._replace(heads_per_chunk=size)
        for size in range(cut.heads_per_chunk + 1, spec.kv_heads + 1)
        if spec.kv_heads % size == 0
    ]
    for phases in range(1, cut.phases):
        if cut.phases % phases == 0:
            settings = cut._replace(phases=phases)._asdict()
            coarser.append(cut_page(spec, **settings))
    assert not any(works(spec, some, one) for one in coarser)


def test_a_fleet_in_which_nobody_writes_is_refused() -> None:
    for some in ([], fleet("", "tp2")):
        with pytest.raises(GridError, match="nobody writes"):
            common_cut(LLAMA, some)
        assert suggest(LLAMA, some, always) is None


def test_a_deployment_that_does_not_fit_the_heads_is_named() -> None:
    with pytest.raises(TopologyError, match=r"tp5,pp1: tp=5 neither divides .* 8 KV heads"):
        common_cut(LLAMA, fleet("tp4 tp5"))
    with pytest.raises(TopologyError, match=r"tp6,pp1: tp=6"):
        common_cut(LLAMA, fleet("tp4", "tp6"))


def test_interleaves_that_differ_have_no_phases_in_common() -> None:
    some = fleet("tp1,dcp2:16 tp2,dcp2 tp1,dcp4:16")
    with pytest.raises(GridError, match=r"tp2,pp1,dcp2: .* interleave 1, others .* 16"):
        common_cut(LLAMA, some)
    assert [one.deployment for one in find_misfits(LLAMA, some)] == [some[1]]


def test_too_many_chunks_are_an_error_and_the_finest_deployment_is_left_out() -> None:
    spec = KVSpec.mha(layers=500, kv_heads=500, head_dim=1, dtype="int8", page_tokens=4)
    some = fleet("tp1,pp500 tp500 tp2,pp2")
    with pytest.raises(SpecError, match="a grid of 250000 chunks"):
        common_cut(spec, some)
    near = suggest(spec, some, always)
    assert near
    assert near.changes == ("without tp1,pp500",)
    assert near.fleet == tuple(some[1:])


@pytest.mark.parametrize(
    ("spec", "writers", "near", "changes"),
    [
        (LLAMA, "tp5", "tp4,pp1", ("tp4,pp1 instead of tp5,pp1",)),
        (LLAMA, "tp7", "tp8,pp1", ("tp8,pp1 instead of tp7,pp1",)),
        (LLAMA, "tp6", "tp4,pp1", ("tp4,pp1 instead of tp6,pp1",)),
        (LLAMA, "tp19", "tp16,pp1", ("tp16,pp1 instead of tp19,pp1",)),
        (SMOL, "tp2,pp2", "tp1,pp2", ("tp1,pp2 instead of tp2,pp2",)),
        (LLAMA, "pp3", "tp1,pp3:27-27-26", ("tp1,pp3:27-27-26 instead of tp1,pp3",)),
        (LLAMA, "pp2:40-39", "tp1,pp2:40-40", ("tp1,pp2:40-40 instead of tp1,pp2:40-39",)),
        (HYBRID, "pp2", "tp1,pp2:16-16", ("tp1,pp2:16-16 instead of tp1,pp2",)),
        (LLAMA, "tp1,dcp3", "tp1,pp1,dcp3", ("pages of 66 tokens instead of 64",)),
        (LLAMA, "tp1,dcp2:64", "tp1,pp1,dcp2:64", ("pages of 128 tokens instead of 64",)),
        (DEEPSEEK, "tp1,dcp2 tp1,dcp2:4 tp2", "tp1,pp1,dcp2 tp2,pp1", ("without tp1,pp1,dcp2:4",)),
        (LLAMA, "tp2,dcp3 tp2,dcp4:16", "tp2,pp1,dcp4:16", ("without tp2,pp1,dcp3",)),
    ],
)
def test_what_is_near_has_the_closest_sizes_or_the_largest_part_of_the_fleet(
    spec: KVSpec, writers: str, near: str, changes: tuple[str, ...]
) -> None:
    found = suggest(spec, fleet(writers), always)
    assert found
    assert " ".join(str(one.topology) for one in found.fleet) == near
    assert found.changes == changes
    assert found.cut == common_cut(found.spec, found.fleet)


def test_readers_cannot_push_the_last_writer_out() -> None:
    found = suggest(LLAMA, fleet("tp1,dcp2", "tp1,dcp2:4 tp1,dcp4:4"), always)
    assert found
    assert [one.writes for one in found.fleet] == [True]


def test_nothing_is_near_where_no_page_could_be_large_enough() -> None:
    wide = KVSpec.mla(layers=1, dim=4000, dtype="int8", page_tokens=2**20)
    assert suggest(wide, fleet("tp1,dcp3"), always) is None
    assert suggest(LLAMA, fleet("tp1 tp2"), lambda _, __: False) is None


sizes = st.integers(1, 9)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    dcp = draw(st.integers(1, 4))
    return Topology(
        tp=draw(sizes),
        pp=draw(sizes),
        dcp=dcp,
        dcp_interleave=draw(st.integers(1, 3)) if dcp > 1 else 1,
    )


@given(st.data(), fleets())
def test_what_is_near_always_works_and_is_the_fleet_itself_where_that_does(
    data: st.DataObject, drawn: tuple[KVSpec, list[Deployment]]
) -> None:
    spec, right = drawn
    others = st.lists(st.builds(Deployment, topologies(), st.booleans()), max_size=4)
    some = [*right, *data.draw(others)]
    near = suggest(spec, some, always)
    assert near
    assert works(near.spec, list(near.fleet), near.cut)
    assert near.cut == common_cut(near.spec, near.fleet)
    assert bool(near.changes) == bool(find_misfits(spec, some))


@given(st.integers(1, 16), st.integers(1, 40))
def test_no_tensor_size_that_fits_is_closer_than_the_one_that_is_told(heads: int, tp: int) -> None:
    spec = KVSpec.mha(layers=1, kv_heads=heads, head_dim=1, dtype="int8", page_tokens=1)
    near = suggest(spec, [Deployment(Topology(tp=tp))], always)
    assert near
    away = abs(near.fleet[0].topology.tp - tp)
    for size in range(max(1, tp - away + 1), tp + away):
        assert find_misfits(spec, [Deployment(Topology(tp=size))])


@given(fleets(), st.integers(2, 5))
def test_other_pages_hold_the_same_cache(
    drawn: tuple[KVSpec, list[Deployment]], times: int
) -> None:
    spec, _ = drawn
    longer = repage(spec, times * spec.page_tokens)
    assert longer.page_bytes == times * spec.page_bytes
    assert longer.tokenwise == spec.tokenwise
    assert repage(longer, spec.page_tokens) == spec


def test_pages_with_parts_of_rows_are_refused() -> None:
    spec = KVSpec.rows(layers=1, row_bytes=8, rows_per_page=3, page_tokens=64)
    with pytest.raises(SpecError, match="want a multiple of 64"):
        repage(spec, 65)


@given(fleets())
def test_a_cut_is_what_its_deployments_need_and_no_more(
    drawn: tuple[KVSpec, list[Deployment]],
) -> None:
    spec, some = drawn
    assume(any(one.writes for one in some))
    cut = common_cut(spec, some)
    alone = [common_cut(spec, [one]) for one in some if one.writes]
    ends = {end for one in alone for end in one.layer_cuts}
    assert cut.layer_cuts == tuple(sorted(ends))
    assert all(start < stop for start, stop in pairwise(cut.layer_cuts))
