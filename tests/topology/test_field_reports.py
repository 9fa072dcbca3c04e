"""Field reports: faults that other stores had where ranks share pages, tokens, layers or heads."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from threading import Thread

import numpy as np
import pytest

from tests.topology.fleets import World, contents, filled_store, rank_of
from tests.topology.oracle import (
    Cut,
    Deployment,
    Model,
    Seat,
    cells,
    holding,
    numbers,
    payload,
    places,
    seats,
)
from tests.topology.pools import spec_of
from unikv import Catalog
from unikv.backends.memory import MemoryStore
from unikv.errors import GridError, TopologyError

LATENTS = Model(4, 0, (2,))
PAGES = 6


def at_once(world: World, store: MemoryStore, deployment: Deployment, **options: str) -> list[int]:
    """Save as every rank, all at the same time; return how many objects each stored."""
    members = world.fleet(store, deployment, filled=True, **options)
    stored = [0] * len(members)

    def work(n: int) -> None:
        stored[n] = members[n].save(world.path).stored

    run([partial(work, n) for n in range(len(members))])
    return stored


def run(works: Sequence[Callable[[], None]]) -> None:
    threads = [Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def objects_of(store: MemoryStore) -> dict[str, bytes]:
    return {key: data for key, data in contents(store).items() if not key.startswith("ns_")}


def test_B10_stages_that_write_one_page_at_once_do_not_overwrite_each_other() -> None:
    world, store = World(Model(8, 1, (2, 2)), Cut((0, 4, 8)), PAGES), MemoryStore()
    stored = at_once(world, store, Deployment(1, (4, 4)))
    assert stored == [PAGES, PAGES]
    assert contents(store) == world.objects
    assert {key.split("_")[2] for key in objects_of(store)} == {"L0-4", "L4-8"}
    world.load(store, Deployment())


def test_B11_alternate_tokens_of_a_page_come_together_again() -> None:
    model = Model(2, 1, (1, 1), page=64)
    world, store = World(model, Cut((0, 2), 1, 2), pages=3), MemoryStore()
    at_once(world, store, Deployment(dcp=2))
    assert contents(store) == world.objects
    [(member, _)] = world.load(store, Deployment())
    rows = [member.pool.places.local(page) for page in range(3)]
    found = places(member.pool.views[0][0, np.concatenate(rows), 0, 0, 0])
    assert found[:, 4].tolist() == list(range(3 * 64))


@pytest.mark.parametrize(
    "deployment", [Deployment(cp=2, sharded=False), Deployment(dcp=2)], ids=str
)
def test_B11_what_is_whole_on_every_rank_is_written_by_one(deployment: Deployment) -> None:
    indexer = World(Model(2, 0, (2,), rows=4), Cut((0, 2)), PAGES)
    assert indexer.save_at_once(deployment) == indexer.objects
    assert indexer.save_at_once(deployment, writers="first") == indexer.objects


@pytest.mark.parametrize("reader", [(), (10, 11, 12, 11), (23, 21)], ids=str)
def test_B12_stages_of_21_and_23_layers_are_read_by_any_other(reader: tuple[int, ...]) -> None:
    world, store = World(Model(44, 1, (1, 1)), Cut((0, 21, 44)), pages=2), MemoryStore()
    world.save(store, Deployment(1, (21, 23)))
    assert contents(store) == world.objects
    for member, _ in world.load(store, Deployment(1, reader)):
        rows = member.pool.places.local(0)
        layers = places(member.pool.views[0][:, rows[0], 0, 0, 0])[:, 1]
        assert layers.tolist() == list(member.held.layers)
    for stages in ((21, 22), (22, 23)):
        with pytest.raises(TopologyError, match=f"sum to {sum(stages)}: want a sum of 44"):
            rank_of(Deployment(1, stages), Seat(1, 0, 0, 0)).box(spec_of(world.model))


@pytest.mark.parametrize("writer", [1, 2, 4])
@pytest.mark.parametrize("reader", [1, 2, 4, 8])
def test_B15_two_heads_on_more_ranks_sit_on_neighbours(writer: int, reader: int) -> None:
    world, store = World(Model(2, 2, (1, 2)), Cut((0, 2)), pages=3), MemoryStore()
    world.save(store, Deployment(writer))
    assert contents(store) == world.objects
    heads = [
        places(member.pool.views[0][0, member.pool.places.local(0)[0], 0, :, 0])[:, 3].tolist()
        for member, _ in world.load(store, Deployment(reader))
    ]
    wanted = {1: [[0, 1]], 2: [[0], [1]], 4: [[0]] * 2 + [[1]] * 2, 8: [[0]] * 4 + [[1]] * 4}
    assert heads == wanted[reader]


@pytest.mark.parametrize(("group", "spread"), [(1, 1), (2, 1), (4, 2)])
def test_B22_half_of_the_heads_is_half_of_k_and_half_of_v(group: int, spread: int) -> None:
    world = World(Model(2, 4, (2, 2)), Cut((0, 2), group), pages=3)
    member = world.member(filled_store(world), Deployment(2), Seat(0, 0, 0, 1))
    report = member.load(world.path)
    for part, view in enumerate(member.pool.views):
        rows = member.pool.places.local(1)
        found = places(view[:, rows, 0])
        assert set(found[:, 3]) == {2, 3}
        assert set(found[:, 2]) == {part}
    assert report.amplification == spread
    assert report.requests == 3 * max(1, 2 // group)  # K and V of a slab lie in one range


def test_B49_ranks_that_share_an_object_are_refused_and_of_chunks_none_is_lost() -> None:
    shared = World(Model(2, 4, (1, 1)), Cut((0, 2), 4), PAGES)
    store = MemoryStore()
    for member in shared.fleet(store, Deployment(4), filled=True):
        with pytest.raises(GridError, match="heads_per_chunk=1"):
            member.save(shared.path)
    assert contents(store) == {}
    world = World(shared.model, Cut((0, 2), 1), PAGES)
    assert at_once(world, store, Deployment(4)) == [PAGES] * 4
    assert contents(store) == world.objects


def test_B57_a_flipped_bit_is_seen_by_who_reads_its_slab_only() -> None:
    world = World(Model(8, 2, (2, 2)), Cut((0, 8), 1), PAGES)
    store = filled_store(world)
    cell = cells(world.model, world.cut)[1]
    key = f"{world.path[3]}_{world.namespace.digest}_{cell.suffix}"
    data = bytearray(world.objects[key])
    body = payload(world.model, cell, PAGES, 3)
    data[data.index(body) + len(body) // 8 * 5] ^= 1  # layer 5
    store._objects[key] = (bytes(data), 0.0)
    pages = [
        [member.load(world.path).pages for member in world.fleet(store, deployment)]
        for deployment in (Deployment(2), Deployment(1, (4, 4)), Deployment(2, (4, 2, 2), 2))
    ]
    assert pages[:2] == [[6, 3], [6, 3]]
    assert pages[2] == [6, 6, 6, 6, 6, 6, 6, 3, 6, 6, 6, 6]


def test_B59_B61_ranks_see_their_own_prefix_and_a_catalog_the_one_of_all() -> None:
    world = World(Model(4, 2, (1, 1)), Cut((0, 2, 4), 1), PAGES)
    store, deployment = filled_store(world), Deployment(2, (2, 2))
    assert len(objects_of(store)) == PAGES * 4  # an object a rank: no copies to disagree
    store.delete([f"{world.path[4]}_{world.namespace.digest}_L2-4_H0"])
    members = world.fleet(store, deployment)
    assert [member.client.match(world.path).pages for member in members] == [6, 6, 4, 6]
    agreed = Catalog(store, world.namespace).match(world.path).pages
    assert agreed == 4
    ranks = [rank_of(deployment, seat) for seat in seats(deployment)]
    assert Catalog(store, world.namespace, ranks=ranks).match(world.path).pages == 4
    one = Catalog(store, world.namespace, ranks=ranks[:2]).match(world.path)
    assert one.pages == 6
    for member in members:  # the engine lets all load what all have
        report = member.client.load(world.path[:agreed], member.slots(0, agreed))
        assert (report.pages, report.stopped) == (4, None)
        assert member.pool.holds(range(4))


def test_B83_shards_have_a_writer_each_and_copies_one_for_all() -> None:
    world = World(LATENTS, Cut((0, 4)), pages=8)
    for sharded, writers in ((None, 4), (False, 1)):
        deployment, store = Deployment(4, cp=4, sharded=sharded), MemoryStore()
        stored = [report.stored for report in world.save(store, deployment, writers="first")]
        assert len([count for count in stored if count]) == writers
        assert sum(stored) == 8
        assert contents(store) == world.objects
        assert world.save_at_once(deployment) == world.objects
        for member in world.fleet(store, deployment):
            assert member.client.match(world.path).pages == 8


@pytest.mark.parametrize("dcp", [1, 2, 8])
@pytest.mark.parametrize(("heads", "writers"), list(product([0, 2], ["striped", "first"])))
def test_B84_bytes_written_are_the_logical_bytes(heads: int, writers: str, dcp: int) -> None:
    model = Model(4, heads, (2, 2) if heads else (2,))
    world = World(model, Cut((0, 4), 1, dcp), PAGES)
    tp = max(1, 8 // dcp)  # vLLM deals tokens out over dcp of its tensor ranks
    deployment = Deployment(tp if tp > 1 or not heads else 2, (), 1, dcp)
    assert world.save_at_once(deployment, writers=writers) == world.objects
    stored = sum(
        len(payload(model, cell, PAGES, page))
        for cell in cells(model, world.cut)
        for page in range(PAGES)
    )
    assert stored == sum(part.nbytes for part in numbers(model, PAGES))
    world.load(filled_store(world), deployment)


@pytest.mark.parametrize("tp", [1, 2, 4, 16])
def test_B100_latents_are_stored_once_at_one_size_and_read_by_all(tp: int) -> None:
    world, store = World(LATENTS, Cut((0, 2, 4)), PAGES), MemoryStore()
    world.save(store, Deployment(tp))
    assert contents(store) == world.objects
    for reader in (1, 2, 4, 16):
        world.load(store, Deployment(reader))


def test_B102_replicas_that_put_one_page_at_once_store_it_once() -> None:
    world, store = World(LATENTS, Cut((0, 4)), PAGES), MemoryStore()
    members = world.fleet(store, Deployment(8), filled=True)
    stored = [0] * 8

    def work(n: int) -> None:  # who is asked again writes whatever is missing
        stored[n] = sum(members[n].save(world.path).stored for _ in range(2))

    run([partial(work, n) for n in range(8)])
    assert sum(stored) == PAGES
    assert contents(store) == world.objects


def test_B83_no_page_is_read_by_who_does_not_own_it() -> None:
    world = World(LATENTS, Cut((0, 4)), pages=8)
    store, deployment = filled_store(world), Deployment(cp=4)
    for seat in seats(deployment):
        held = holding(LATENTS, deployment, seat, 8, 0)
        own = {world.path[page] for page in held.pages}
        partial = MemoryStore()
        partial._objects.update({k: v for k, v in store._objects.items() if k[:64] in own})
        member = world.member(partial, deployment, seat)
        report = member.load(world.path)
        assert (report.pages, report.requests) == (8, 2)
