"""Odd fleets: models, grids and deployments as Hypothesis draws them, one object missing."""

from itertools import accumulate, pairwise
from math import lcm

from hypothesis import given
from hypothesis import strategies as st

from tests.topology.fleets import World, contents
from tests.topology.oracle import Cut, Deployment, Model, cells, shares
from unikv.backends.memory import MemoryStore


@st.composite
def models(draw: st.DrawFn) -> tuple[Model, int, int]:
    """Draw a model, and the token phases and interleave that its page allows."""
    phases, interleave = draw(st.sampled_from([(1, 1), (2, 1), (2, 3), (4, 2), (6, 1), (3, 2)]))
    layers = draw(st.integers(1, 7))
    gaps = draw(st.lists(st.integers(1, 3), min_size=layers, max_size=layers))
    heads = draw(st.integers(0, 6))
    dims = draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    page = phases * interleave * draw(st.integers(1, 3))
    ids = tuple(end - 1 for end in accumulate(gaps)) if draw(st.booleans()) else ()
    return Model(layers, heads, tuple(dims[: 2 if heads else 1]), page, ids=ids), phases, interleave


def draw_deployment(draw: st.DrawFn, model: Model, phases: int, interleave: int) -> Deployment:
    heads = max(1, model.heads)
    fits = [tp for tp in range(1, 9) if heads % tp == 0 or tp % heads == 0]
    tp, cp = draw(st.sampled_from(fits)), draw(st.integers(1, 3))
    dcp = draw(st.sampled_from([n for n in range(1, phases + 1) if phases % n == 0]))
    last = model.layer_ids[-1]
    ends = sorted(draw(st.sets(st.integers(1, last), max_size=2))) if last else []
    bounds = [0, *ends, last + 1]
    stages = tuple(b - a for a, b in pairwise(bounds)) if ends else ()
    modes = [None, False, True] if cp > 1 or (tp > 1 and not model.heads) else [None, False]
    sharded = draw(st.sampled_from(modes))
    return Deployment(tp, stages, cp, dcp, interleave if dcp > 1 else 1, sharded)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[World, Deployment, Deployment, int]:
    model, most, interleave = draw(models())
    writer = draw_deployment(draw, model, most, interleave)
    reader = draw_deployment(draw, model, most, interleave)
    needed = {0, model.layers} | {
        sum(layer < end for layer in model.layer_ids) for end in accumulate(writer.stages)
    }
    layers = needed | draw(st.sets(st.integers(0, model.layers), max_size=3))
    share = max(1, max(1, model.heads) // writer.tp)
    group = draw(st.sampled_from([n for n in range(1, share + 1) if share % n == 0]))
    least = lcm(writer.dcp, reader.dcp)
    phases = draw(st.sampled_from([n for n in range(least, most + 1, least) if most % n == 0]))
    cut = Cut(tuple(sorted(layers)), group, phases, interleave if phases > 1 else 1)
    pages = draw(st.integers(1, 5))
    return World(model, cut, pages), writer, reader, draw(st.integers(0, 99))


@given(fleets(), st.data())
def test_any_fleet_writes_the_oracles_bytes_and_each_rank_reads_to_the_first_hole(
    fleet: tuple[World, Deployment, Deployment, int], data: st.DataObject
) -> None:
    world, writer, reader, seed = fleet
    assert world.save_at_once(writer, rotation=seed % 4, seed=seed) == world.objects
    store = MemoryStore()
    world.save(store, writer, rotation=seed % 4, seed=seed)
    assert contents(store) == world.objects
    loaded = world.load(store, reader, rotation=seed % 3)
    for member, report in loaded:
        world.check_cost(member, report)
    cell = data.draw(st.sampled_from(cells(world.model, world.cut)))
    at = data.draw(st.integers(0, world.pages - 1))
    key = f"{world.path[at]}_{world.namespace.digest}_{cell.suffix}"
    store.delete([key])
    for member in world.fleet(store, reader, rotation=seed % 3):
        wants = at in member.held.pages and shares(cell, member.held)
        report = member.load(world.path)
        assert report.pages == (at if wants else world.pages)
        assert [failure.key for failure in report.failed] == ([key] if wants else [])
        assert member.pool.holds(range(report.pages))
