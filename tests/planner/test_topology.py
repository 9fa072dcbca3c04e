"""Topology: which layers and heads each rank holds, and the one error of each wrong size."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.errors import TopologyError
from unikv.geometry import Box, Interval
from unikv.spec import KVSpec, StatePart
from unikv.topology import Rank, Topology

LLAMA = KVSpec.mha(layers=44, kv_heads=8, head_dim=4, dtype="float16", page_tokens=4)
MLA = KVSpec.mla(layers=61, dim=8, dtype="bfloat16", page_tokens=4)
HYBRID = KVSpec.mha(
    layers=8, kv_heads=4, head_dim=4, dtype="float16", page_tokens=4, layer_ids=range(3, 32, 4)
)


def heads(count: int) -> KVSpec:
    return KVSpec.mha(layers=2, kv_heads=count, head_dim=4, dtype="float16", page_tokens=4)


def topology_with(name: str, size: object) -> Topology:
    sizes: dict[str, Any] = {name: size}  # Any: sizes of wrong types are the point
    return Topology(**sizes)


def boxes(topology: Topology, spec: KVSpec) -> list[tuple[str, str]]:
    found = [rank.box(spec) for rank in topology.ranks()]
    return [(str(box.layers), str(box.heads)) for box in found]


def test_tensor_ranks_hold_contiguous_heads() -> None:
    assert [heads for _, heads in boxes(Topology(tp=4), LLAMA)] == ["0..2", "2..4", "4..6", "6..8"]


@pytest.mark.parametrize(
    ("tp", "held"), [(1, [0]), (2, [0, 1]), (4, [0, 0, 1, 1]), (8, [0, 0, 0, 0, 1, 1, 1, 1])]
)
def test_B15_replicated_heads_sit_on_neighbours(tp: int, held: list[int]) -> None:
    ranks = Topology(tp=tp).ranks()
    assert [rank.box(heads(2)).heads.start for rank in ranks] == held
    assert {rank.box(heads(2)).heads.size for rank in ranks} == {2 // min(tp, 2)}


def test_B84_replicas_are_counted_among_ranks_of_the_same_box() -> None:
    gqa = [rank.replica(heads(2)) for rank in Topology(tp=8).ranks()]
    assert gqa == [(0, 4), (1, 4), (2, 4), (3, 4)] * 2
    assert [rank.replica(MLA) for rank in Topology(tp=8).ranks()] == [(i, 8) for i in range(8)]
    assert {rank.replica(LLAMA) for rank in Topology(tp=8, pp=2).ranks()} == {(0, 1)}


def test_B100_latents_are_held_whole_by_every_tensor_rank() -> None:
    assert boxes(Topology(tp=4), MLA) == [("0..61", "0..1")] * 4
    rows = KVSpec.rows(layers=3, row_bytes=8, rows_per_page=2, page_tokens=4)
    assert boxes(Topology(tp=3), rows) == [("0..3", "0..1")] * 3


def test_state_groups_are_shared_out_like_heads() -> None:
    conv = StatePart("conv", "float32", (8, 3))
    cut = KVSpec.state(layers=2, parts=[conv], page_tokens=4, groups=4)
    whole = KVSpec.state(layers=2, parts=[conv], page_tokens=4)
    assert [h for _, h in boxes(Topology(tp=2), cut)] == ["0..2", "2..4"]
    assert [h for _, h in boxes(Topology(tp=8), cut)][4:6] == ["2..3", "2..3"]
    assert [rank.replica(whole) for rank in Topology(tp=2).ranks()] == [(0, 2), (1, 2)]


def test_equal_stages_need_no_table() -> None:
    assert [layers for layers, _ in boxes(Topology(pp=4), LLAMA)] == [
        "0..11",
        "11..22",
        "22..33",
        "33..44",
    ]


@pytest.mark.parametrize(
    ("table", "stages"),
    [((21, 23), ["0..21", "21..44"]), ((10, 11, 12, 11), ["0..10", "10..21", "21..33", "33..44"])],
)
def test_B12_uneven_stages_begin_at_the_sum_of_those_before(
    table: tuple[int, ...], stages: list[str]
) -> None:
    topology = Topology(pp=len(table), pp_layers=table)
    assert [layers for layers, _ in boxes(topology, LLAMA)] == stages


def test_layers_of_a_hybrid_are_ordinals_of_those_inside_the_stage() -> None:
    topology = Topology(pp=3, pp_layers=(13, 16, 3))  # the component's ids: 3, 7, 11 ... 31
    assert [layers for layers, _ in boxes(topology, HYBRID)] == ["0..3", "3..7", "7..8"]
    assert [layers for layers, _ in boxes(Topology(tp=2), HYBRID)] == ["0..8", "0..8"]


def test_a_stage_without_layers_of_the_component_holds_an_empty_box() -> None:
    ranks = Topology(pp=3, pp_layers=(3, 28, 1)).ranks()
    assert [rank.box(HYBRID).empty for rank in ranks] == [True, False, False]
    assert ranks[1].box(HYBRID).layers == Interval(0, 7)


def test_ranks_of_one_stage_stand_together() -> None:
    assert [(rank.pp, rank.tp) for rank in Topology(tp=2, pp=2).ranks()] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert Topology(tp=2, pp=2).rank(tp=1, pp=1) == Topology(tp=2, pp=2).ranks()[3]


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("tp1,pp1", Topology()),
        ("tp3,pp2", Topology(tp=3, pp=2)),
        ("tp3,pp3:11-10-9", Topology(tp=3, pp=3, pp_layers=(11, 10, 9))),
        ("tp1,pp1:61", Topology(pp_layers=(61,))),
    ],
)
def test_text_and_topology_are_inverses(text: str, topology: Topology) -> None:
    assert Topology.parse(text) == topology
    assert str(topology) == text


@given(st.data())
def test_every_topology_survives_its_text(data: st.DataObject) -> None:
    size = st.integers(1, 2**16)
    table = data.draw(st.none() | st.lists(size, min_size=1, max_size=6).map(tuple))
    pp = len(table) if table else data.draw(size)
    topology = Topology(tp=data.draw(size), pp=pp, pp_layers=table)
    assert Topology.parse(str(topology)) == topology


@pytest.mark.parametrize(
    ("text", "topology"), [("tp2", Topology(tp=2)), ("pp2,tp3,cp1,dcp1", Topology(tp=3, pp=2))]
)
def test_axes_left_out_are_one_and_order_is_free(text: str, topology: Topology) -> None:
    assert Topology.parse(text) == topology


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tp0",
        "tp",
        "tp02",
        "tp2,tp2",
        "tp2:1-1",
        "pp2:1-",
        "pp2:01-1",
        "TP2",
        "tp2 ",
        "tp-1",
        "tp2,",
        "xp2",
        "tp2\n",
        "tp\u0663",
        "tp123456",
        "pp2:1",
        "tp99999",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(TopologyError, match="want"):
        Topology.parse(text)


@pytest.mark.parametrize("name", ["tp", "pp", "cp", "dcp"])
@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2", None, 2**16 + 1])
def test_a_size_is_a_whole_number_above_zero(name: str, size: int) -> None:
    with pytest.raises(TopologyError, match=rf"^{name}={size!r}: want a whole number 1..65536"):
        topology_with(name, size)


@pytest.mark.parametrize(
    ("pp", "table", "message"),
    [
        (2, (10, 11, 9), r"has 3 stages and pp=2: want pp=3 or 2 stages"),
        (1, (10, 11), r"has 2 stages and pp=1: want pp=2 or 1 stages"),
        (2, (44, 0), r"pp_layers\[1\]=0: want a whole number"),
        (2, (True, 43), r"pp_layers\[0\]=True: want"),
        (2, 22, r"pp_layers=22: want the layers of each stage"),
    ],
)
def test_a_table_of_stages_has_one_size_a_stage(
    pp: int, table: tuple[int, ...], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        Topology(pp=pp, pp_layers=table)


def test_a_table_given_as_a_list_is_kept_as_a_tuple() -> None:
    table: object = [22, 22]
    topology = Topology(pp=2, pp_layers=table)  # type: ignore[arg-type]  # what configs hold
    assert hash(topology) == hash(Topology(pp=2, pp_layers=(22, 22)))


@pytest.mark.parametrize("table", [(21, 22), (21, 24)])
def test_B12_a_table_that_does_not_sum_to_the_layers_is_refused(table: tuple[int, ...]) -> None:
    with pytest.raises(TopologyError, match=rf"sum to {sum(table)}: want a sum of 44"):
        Topology(pp=2, pp_layers=table).ranks()[0].box(LLAMA)


def test_a_table_short_of_the_last_layer_of_a_hybrid_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"sum to 31.*layer 31: want a sum of 32 or more"):
        Topology(pp=2, pp_layers=(15, 16)).ranks()[0].box(HYBRID)


def test_stages_that_nothing_tells_are_refused_with_a_table_that_would_do() -> None:
    with pytest.raises(TopologyError, match=r"pp=3 .* 44 layers.*pp_layers=\(15, 15, 14\)"):
        Topology(pp=3).ranks()[0].box(LLAMA)
    with pytest.raises(TopologyError, match=r"pp=3 .* 2 layers.*pp=2, pp_layers=\(1, 1\)"):
        Topology(pp=3).ranks()[0].box(heads(2))
    with pytest.raises(TopologyError, match=r"pp=2 .* only layers 3, 7.*want pp_layers="):
        Topology(pp=2).ranks()[0].box(HYBRID)


@pytest.mark.parametrize("tp", [3, 5, 6, 12])
def test_a_tensor_size_that_does_not_fit_the_heads_names_those_that_do(tp: int) -> None:
    with pytest.raises(TopologyError, match=f"tp={tp} .* 8 KV heads: want tp=1, 2, 4, 8 or a mult"):
        Topology(tp=tp).ranks()[0].box(LLAMA)
    with pytest.raises(TopologyError, match=f"tp={tp} "):
        Topology(tp=tp).ranks()[0].replica(LLAMA)


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("tp", 3, "0..2"),
        ("tp", -1, "0..2"),
        ("pp", 2, "0..1"),
        ("tp", True, "0..2"),
        ("cp", 1, "0"),
    ],
)
def test_a_rank_stands_inside_every_axis(name: str, value: int, right: str) -> None:
    with pytest.raises(
        TopologyError, match=rf"rank {name}={value} of .*tp3,pp2: want {name}={right}"
    ):
        Rank(Topology(tp=3, pp=2), **{name: value})


def test_a_rank_prints_where_it_stands() -> None:
    rank = Topology(tp=3, pp=2).rank(tp=1, pp=0)
    assert isinstance(rank, Rank)
    assert str(rank) == "rank tp=1 pp=0 of tp3,pp2"
    assert rank.box(heads(3)) == Box(Interval(0, 1), Interval(1, 2))


@pytest.mark.parametrize("axis", ["tp", "pp", "cp", "dcp"])
def test_a_rank_that_does_not_say_which_of_several_it_is_is_refused(axis: str) -> None:
    with pytest.raises(TopologyError, match=rf"without {axis}: want {axis}=0\.\.1"):
        Topology.parse(f"{axis}2").rank()
    assert Topology.parse(f"{axis}1").rank() == Topology().ranks()[0]
