"""Bad input: sizes, ranks, grids and logical slots that cannot be right, and the one error each."""

from typing import Any

import pytest
import torch

from tests.topology.fleets import World, contents, filled_store, namespace_of
from tests.topology.models import MODELS, tensor_sizes
from tests.topology.oracle import Cut, Deployment, Model, Seat, seats
from tests.topology.pools import Layout, spec_of
from unikv import Topology
from unikv.backends.memory import MemoryStore
from unikv.errors import PoolError, SpecError, TopologyError
from unikv.topology import Rank

KV = Model(4, 2, (2, 1))
LATENTS = Model(4, 0, (2,))


@pytest.mark.parametrize("name", MODELS)
def test_tensor_sizes_that_neither_divide_nor_are_a_multiple_are_refused(name: str) -> None:
    spec, fits = spec_of(MODELS[name]), tensor_sizes(name)
    for tp in range(1, 17):
        rank = Topology(tp=tp, cp=2).ranks()[-1]
        heads = max(1, MODELS[name].heads)
        if heads % tp and tp % heads:
            assert tp not in fits
            for ask in (rank.box, rank.replica):
                with pytest.raises(TopologyError, match=rf"tp={tp} .* {heads} KV heads: want tp="):
                    ask(spec)
        else:
            rank.box(spec)


@pytest.mark.parametrize(
    ("name", "sizes", "says"),
    [
        ("mha 8 heads 61 layers", {"pp": 2}, r"pp_layers=\(31, 30\)"),
        ("mha 8 heads 61 layers", {"pp": 2, "pp_layers": (31, 31)}, "sum to 62: want a sum of 61"),
        ("mla 61 layers", {"pp": 3, "pp_layers": (20, 20, 20)}, "sum to 60: want a sum of 61"),
        ("hybrid", {"pp": 2}, r"pp_layers=\(\.\.\.\)"),
        ("hybrid", {"pp": 2, "pp_layers": (16, 15)}, "sum to 31.*layer 31: want a sum of 32"),
    ],
)
def test_stages_that_do_not_sum_up_are_refused(name: str, sizes: dict[str, Any], says: str) -> None:
    for rank in Topology(tp=2, cp=2, **sizes).ranks():
        with pytest.raises(TopologyError, match=says):
            rank.box(spec_of(MODELS[name]))


@pytest.mark.parametrize("axis", ["tp", "pp", "cp", "dcp"])
@pytest.mark.parametrize("at", [-1, 2, 3, True, 1.0, "1", None])
def test_a_rank_outside_its_sizes_is_refused(axis: str, at: Any) -> None:
    topology = Topology(tp=2, pp=2, cp=2, dcp=2)
    with pytest.raises(TopologyError, match=rf"rank {axis}=.*want {axis}=0\.\.1"):
        Rank(topology, **{axis: at})


def test_a_rank_says_all_its_places() -> None:
    rank = Topology(tp=2, cp=3, dcp=4, dcp_interleave=2).rank(tp=1, cp=2, dcp=3)
    assert str(rank) == "rank tp=1 pp=0 cp=2 dcp=3 of tp2,pp1,cp3,dcp4:2"
    assert str(Topology(tp=2).rank(tp=1)) == "rank tp=1 pp=0 of tp2,pp1"


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"cp": 0}, "cp=0"),
        ({"dcp": -2}, "dcp=-2"),
        ({"dcp": True}, "dcp=True"),
        ({"dcp_interleave": 2}, "dcp_interleave=2 with dcp=1"),
        ({"dcp": 2, "dcp_interleave": 0}, "dcp_interleave=0"),
        ({"pp": 2, "pp_layers": (4,)}, "1 stages and pp=2"),
        ({"cp": 2**16 + 1}, "65537"),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: dict[str, Any], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        Topology(**sizes)


@pytest.mark.parametrize(("phases", "interleave"), [(3, 1), (5, 1), (16, 2), (2, 16), (32, 1)])
def test_phases_that_do_not_divide_a_page_are_refused(phases: int, interleave: int) -> None:
    with pytest.raises(SpecError, match=r"do not divide a page of 16"):
        namespace_of(KV, Cut((0, 4), 2, phases, interleave))


@pytest.mark.parametrize("phases", [0, -1, True, 2.0])
def test_phases_that_are_no_count_are_refused(phases: Any) -> None:
    with pytest.raises(SpecError, match="phases"):
        namespace_of(KV, Cut((0, 4), 2, phases))


def test_latents_alone_are_dealt_out_over_tensor_ranks_and_only_where_there_are_some() -> None:
    for model, deployment in (
        (KV, Deployment(2, sharded=True)),
        (KV, Deployment(4, sharded=True)),
        (LATENTS, Deployment(1, sharded=True)),
        (LATENTS, Deployment(1, dcp=2, sharded=True)),
    ):
        world = World(model, Cut((0, 4), 1, deployment.dcp))
        with pytest.raises(TopologyError, match=r"sharded=True on .*want cp > 1, or a kind"):
            world.member(MemoryStore(), deployment, seats(deployment)[0])
    for model in (KV, LATENTS):  # over context ranks it says what holds anyway
        world = World(model, Cut((0, 4)))
        world.load(filled_store(world), Deployment(2, cp=2, sharded=True))


def refuse(change: Any, says: str, deployment: Deployment, layout: Layout = "slots") -> None:
    """Check that every rank refuses a changed table, in both directions, and nothing moves."""
    world = World(KV, Cut((0, 4), 1))
    full, empty = filled_store(world), MemoryStore()
    for seat in seats(deployment):
        reader = world.member(full, deployment, seat, layout=layout)
        table = change(reader.pool.table.clone())
        with pytest.raises(PoolError, match=says):
            reader.client.load(world.path, {"target": table})
        assert reader.pool.holds(())
        writer = world.member(empty, deployment, seat, layout=layout, filled=True)
        with pytest.raises(PoolError, match=says):
            writer.client.save(world.path, {"target": table})
        assert contents(empty) == {}


def straddle(table: torch.Tensor) -> torch.Tensor:
    table[2] += table.shape[1] // 2
    return table


def shift_one(table: torch.Tensor) -> torch.Tensor:
    table[1, -1] = table[1, -1] // table.shape[1] * table.shape[1] - 1
    return table


def negative(table: torch.Tensor) -> torch.Tensor:
    return table - table.max() - 2  # no -1: that is a page without slots


@pytest.mark.parametrize("layout", ["slots", "NHD"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (straddle, r"page 2 lies in two logical pages"),
        (shift_one, r"page 1 lies in two logical pages|logical slot -1"),
        (negative, r"logical slot -\d+: want 0 or more"),
        (lambda table: table[:3], "4 pages, but slots .* for 3"),
        (lambda table: table.float(), "float32"),
        (lambda table: table.flatten(), "4 pages, but slots|one row a page"),
    ],
    ids=["straddles", "one slot astray", "negative", "too few", "floats", "flat"],
)
def test_logical_slots_that_are_no_pages_are_refused_by_every_rank(
    change: Any, says: str, layout: Layout
) -> None:
    refuse(change, says, Deployment(cp=2), layout)


@pytest.mark.parametrize("deployment", [Deployment(cp=2), Deployment(cp=6)], ids=str)
def test_a_table_of_another_width_is_refused_also_by_who_owns_none_of_it(
    deployment: Deployment,
) -> None:
    half = torch.arange(8)
    refuse(lambda table: table[:, :1] // 16 * 8 + half, r"\(4, 8\)", deployment)
    refuse(lambda table: table[:, :1] // 16, r"\(4, 1\)", deployment)


def test_a_logical_page_beyond_the_pool_or_named_twice_is_refused_by_its_owner() -> None:
    world = World(KV, Cut((0, 4), 1))
    store = filled_store(world)
    reader = world.member(store, Deployment(cp=2), Seat(0, 0, 0, 0))
    far = reader.pool.table.clone()
    far[2] += 2 * 16 * reader.pool.slots
    with pytest.raises(PoolError, match=rf"want 0 to {reader.pool.slots - 1}"):
        reader.client.load(world.path, {"target": far})
    twice = reader.pool.table.clone()
    twice[2] = twice[0]
    with pytest.raises(PoolError, match="pages 0 and 1 both name"):
        reader.client.load(world.path, {"target": twice})
    assert reader.pool.holds(())
