"""Token phases: decode ranks that hold every n-th token, at any number that divides the grid's."""

from itertools import product
from math import lcm

import numpy as np
import pytest

from tests.topology.fleets import World, contents, filled_store
from tests.topology.oracle import Cut, Deployment, Model, Seat, numbers
from tests.topology.pools import Layout
from unikv.backends.memory import MemoryStore
from unikv.errors import GridError, SpecError, TopologyError

SIZES = (1, 2, 3, 4, 6, 12)  # all divide 12 phases
KV = Model(3, 2, (1, 2), page=48)
LATENTS = Model(3, 0, (2,), page=48)
INDEXER = Model(2, 0, (2,), rows=3, page=48)


def decode(ranks: int, interleave: int, **sizes: int) -> Deployment:
    return Deployment(dcp=ranks, interleave=interleave if ranks > 1 else 1, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("interleave", [1, 2, 4])
@pytest.mark.parametrize("model", [KV, LATENTS], ids=["heads", "latents"])
def test_tokens_saved_by_any_number_of_ranks_are_loaded_by_any_other(
    model: Model, interleave: int
) -> None:
    for writers in SIZES:
        phases = lcm(writers, 4 if interleave == 4 else 6)
        cut = Cut((0, 1, 3), 1, phases, interleave)
        world, store = World(model, cut, pages=3), MemoryStore()
        world.save(store, decode(writers, interleave))
        assert contents(store) == world.objects
        for readers in (n for n in SIZES if phases % n == 0):
            for member, report in world.load(store, decode(readers, interleave)):
                world.check_cost(member, report)
                assert report.amplification == 1  # only its own tokens


def test_coarser_phases_than_the_grid_has_are_refused_and_finer_ones_are_whole_chunks() -> None:
    for phases, writers in product(SIZES, SIZES):
        world = World(KV, Cut((0, 3), 1, phases, 2 if phases > 1 else 1), pages=2)
        if phases % writers == 0:
            assert world.save_at_once(decode(writers, 2)) == world.objects
        else:
            with pytest.raises(GridError, match=rf"phases={writers} \(or a multiple\)"):
                world.member(MemoryStore(), decode(writers, 2), Seat(0, 0, 0, 0))


def test_an_interleave_that_is_not_the_grids_is_refused() -> None:
    world = World(KV, Cut((0, 3), 1, 4, 2))
    with pytest.raises(GridError, match="interleave=4"):
        world.member(MemoryStore(), decode(2, 4), Seat(0, 0, 0, 0))


@pytest.mark.parametrize("ranks", [5, 7, 32])
def test_ranks_that_do_not_divide_a_page_are_refused(ranks: int) -> None:
    world = World(KV, Cut((0, 3), 1, 4, 2))
    with pytest.raises(TopologyError, match=rf"dcp={ranks}.*multiple of {2 * ranks}"):
        world.member(MemoryStore(), decode(ranks, 2), Seat(0, 0, 0, 0))
    with pytest.raises(SpecError, match="do not divide a page of 48"):
        _ = World(KV, Cut((0, 3), 1, ranks, 2)).namespace


def test_rows_that_follow_no_tokens_are_copies_on_every_decode_rank() -> None:
    world, deployment = World(INDEXER, Cut((0, 2)), pages=6), decode(4, 2, tp=2)
    assert world.save_at_once(deployment) == world.objects
    assert world.save_at_once(deployment, writers="first") == world.objects
    for member, report in world.load(filled_store(world), deployment):
        world.check_cost(member, report)
    with pytest.raises(SpecError, match="do not follow tokens"):
        _ = World(INDEXER, Cut((0, 2), 1, 2)).namespace


@pytest.mark.parametrize("layout", ["slots", "NHD", "HND"])
def test_blocks_hold_the_ranks_own_tokens(layout: Layout) -> None:
    world = World(KV, Cut((0, 3), 2, 6, 2), pages=4)
    writer = decode(3, 2)
    store = MemoryStore()
    world.save(store, writer, layout=layout)
    assert contents(store) == world.objects
    for member, _ in world.load(store, decode(2, 2), layout=layout):
        first = numbers(KV, 4)[0][0, 0, :, 0, 0]
        own = [t for t in range(48) if t // 2 % 2 == member.seat.dcp]
        rows = member.pool.places.local(0)
        found = member.pool.views[0][0, rows // member.pool.block, rows % member.pool.block, 0, 0]
        assert np.array_equal(found, first[own])


def test_context_and_decode_ranks_go_together() -> None:
    world, store = World(KV, Cut((0, 3), 1, 12, 2), pages=5), MemoryStore()
    writer, reader = decode(4, 2, cp=3, tp=2), decode(6, 2, cp=2)
    world.save(store, writer, rotation=1)
    assert contents(store) == world.objects
    world.load(store, reader, rotation=1)
