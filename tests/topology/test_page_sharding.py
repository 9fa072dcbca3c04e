"""Page sharding: context ranks save and load the pages that they own, at any number of them."""

from itertools import product

import numpy as np
import pytest
import torch

from tests.topology.fleets import World, contents, filled_store, path_of, rank_of
from tests.topology.oracle import POISON, Cut, Deployment, Model, Places, Seat, holding, seats
from tests.topology.pools import Pool
from unikv import Client, Component
from unikv.backends.memory import MemoryStore
from unikv.sharding import may_join, owner, rotation

KV = Model(4, 2, (2, 1))
LATENTS = Model(4, 0, (3,))
INDEXER = Model(2, 0, (2,), rows=1, component=1)
CUT = Cut((0, 2, 4))


def context(ranks: int, **sizes: int) -> Deployment:
    return Deployment(cp=ranks, **sizes)  # type: ignore[arg-type]  # sizes of other axes


def test_the_seeds_slots_lie_in_the_rows_that_it_says() -> None:
    model = Model(1, 1, (1, 1), page=4)
    world, store = World(model, Cut((0, 1)), pages=6), MemoryStore()
    table = np.arange(24).reshape(6, 4)
    for seat in seats(context(2)):
        held = holding(model, context(2), seat, 6, 0)
        assert held.pages == ((0, 2, 4) if seat.cp == 0 else (1, 3, 5))
        pool = Pool(model, held, Places(table, 2), 16)
        tokens = [4 * page + t for page in held.pages for t in range(4)]
        for part, view in enumerate(pool.views):
            view[0, :12, 0, 0, 0] = [token + 100 * part for token in tokens]
        component = Component(world.namespace, pool.cache)
        client = Client(store, {"target": component}, rank_of(context(2), seat))
        report = client.save(world.path, {"target": torch.from_numpy(table)})
        assert (report.stored, report.pages) == (3, 3)
    whole = world.member(store, Deployment(), Seat(0, 0, 0, 0))
    assert whole.load(world.path).pages == 6
    for part, view in enumerate(whole.pool.views):
        found = view[0, whole.pool.places.table.ravel(), 0, 0, 0]
        assert found.tolist() == [token + 100 * part for token in range(24)]


@pytest.mark.parametrize("model", [KV, LATENTS], ids=["heads", "latents"])
def test_pages_saved_by_any_number_of_ranks_are_loaded_by_any_other(model: Model) -> None:
    world = World(model, CUT, pages=7)
    for writers, begin in product((1, 2, 3, 4), (0, 1, 3)):
        store = MemoryStore()
        world.save(store, context(writers), rotation=begin)
        assert contents(store) == world.objects
        for readers, first in product((1, 2, 3, 4, 9), (0, 2)):
            loaded = world.load(store, context(readers), rotation=first, staging_bytes=20_000)
            owned = [member.held.pages for member, _ in loaded]
            assert sorted(sum(owned, ())) == list(range(7))
            for member, report in loaded:
                world.check_cost(member, report)


def test_a_path_that_is_extended_keeps_its_rotation_and_its_objects() -> None:
    world, store, deployment = World(KV, CUT, pages=7), MemoryStore(), context(3)
    for member in world.fleet(store, deployment, rotation=2, filled=True):
        table = member.pool.table
        owners = owner(table[:, 0], KV.page, 3)
        assert rotation(owners, 3) == 2
        assert may_join(owners[:3], owners[3:], 3)
        first = member.save(world.path[:3])
        again = member.save(world.path)
        assert first.pages == 1
        assert (again.existed, again.stored) == (first.stored, 4 * (len(member.held.pages) - 1))
    assert contents(store) == world.objects
    for member in world.fleet(store, deployment, rotation=1):
        assert member.load(world.path[:4]).pages == 4
        assert member.pool.holds(range(4))
        assert member.load(world.path[4:], 4).pages == 3
        assert member.pool.holds(range(7))


def test_a_suffix_is_saved_from_where_it_begins() -> None:
    world, deployment = World(KV, CUT, pages=6), context(2)
    store = MemoryStore()
    for member in world.fleet(store, deployment, rotation=1, filled=True):
        member.save(world.path[2:], 2)
    whole = world.objects
    found = contents(store)
    assert {key[:64] for key in found if not key.startswith("ns_")} == set(world.path[2:])
    # Only the first page's parent is not known to who saves a suffix.
    assert all(found[key] == whole[key] for key in found if key[:64] != world.path[2])


def test_a_missing_page_ends_the_prefix_of_its_owner_only() -> None:
    world = World(KV, CUT, pages=6)
    store = filled_store(world)
    store.delete([key for key in world.objects if key.startswith(world.path[3])])
    for member in world.fleet(store, context(2)):
        report = member.load(world.path)
        assert report.pages == (3 if 3 in member.held.pages else 6)
        assert member.pool.holds(range(report.pages))


@pytest.mark.parametrize("sharded", [True, None, False])
def test_latents_are_dealt_out_over_tensor_ranks_where_asked(sharded: bool | None) -> None:  # noqa: FBT001 - a case
    world, store = World(LATENTS, CUT, pages=7), MemoryStore()
    deployment = Deployment(4, (2, 2), sharded=sharded)
    assert world.save_at_once(deployment) == world.objects
    reports = world.save(store, deployment, rotation=1)
    assert sum(report.stored for report in reports) == 7 * 2
    for reader in (deployment, context(3), Deployment(2, sharded=True), Deployment(3)):
        for member, report in world.load(store, reader):
            owned = 7 if reader.sharded is None and reader.cp == 1 else len(member.held.pages)
            assert report.requests == owned * len(member.held.layers) // 2
    each = [len(member.held.pages) for member in world.fleet(store, deployment)]
    assert each == ([2, 2, 2, 1] * 2 if sharded else [7] * 8)


def test_a_replicated_component_beside_a_sharded_one_is_written_once() -> None:
    kv, indexer = World(KV, CUT, pages=5), World(INDEXER, Cut((0, 2)), pages=5)
    store, shared, copied = MemoryStore(), context(3), Deployment(cp=3, sharded=False)
    stored = []
    wanted = kv.objects | indexer.objects
    for filled in (True, False):
        for seat in seats(shared):
            pools = (kv.pool(shared, seat, rotation=1), indexer.pool(copied, seat, seed=5))
            if filled:
                for pool in pools:
                    pool.fill(range(5))
            parts = {
                "target": Component(kv.namespace, pools[0].cache),
                "part1": Component(indexer.namespace, pools[1].cache, sharded=False),
            }
            slots = {"target": pools[0].table, "part1": pools[1].table}
            client = Client(store, parts, rank_of(shared, seat))
            if filled:
                stored.append(client.save(kv.path, slots).stored)
                continue
            report = client.load(kv.path, slots)
            assert report.pages == 5
            assert all(pool.holds(range(5)) for pool in pools)
            assert report.requests == 4 * len(pools[0].held.pages) + 5
    assert sum(stored) == 5 * 4 + 5
    assert contents(store) == wanted


def test_tables_may_be_lists_or_int32_and_pages_in_any_order_inside() -> None:
    world = World(KV, CUT, pages=4)
    store = filled_store(world)
    for member in world.fleet(store, context(2)):
        for table in (member.pool.table.tolist(), member.pool.table.int()):
            for view in member.pool.views:
                view[:] = POISON
            assert member.client.load(world.path, {"target": table}).pages == 4
            assert member.pool.holds(range(4))


def test_a_rank_that_owns_none_of_the_pages_has_nothing_to_do() -> None:
    world = World(KV, CUT, pages=1)
    store = filled_store(world)
    first, second = world.fleet(store, context(2))
    assert first.load(world.path).requests == 4
    report = second.load(world.path)
    assert (report.pages, report.requests, report.stopped) == (1, 0, None)
    assert second.pool.holds(())
    empty = MemoryStore()
    other = world.member(empty, context(2), Seat(0, 1, 0, 0), filled=True)
    assert other.save(world.path).stored == 0
    assert path_of(1, KV.page) == world.path
