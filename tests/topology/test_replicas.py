"""Replicas: who of those that hold the same bytes writes a page, and how a hole is filled."""

from collections import Counter
from functools import cache

import pytest

from tests.topology.fleets import World, contents, filled_store, path_of, rank_of
from tests.topology.oracle import Cell, Cut, Deployment, Model, Seat, cells, holding, payload, seats
from unikv import Client, Component
from unikv.backends.memory import MemoryStore

LATENTS = Model(2, 0, (2,))
GQA = Model(2, 2, (1, 1))
INDEXER = Model(2, 0, (1,), rows=1, component=1)
CUT = Cut((0, 1, 2))
COPIES = [
    (LATENTS, Deployment(2)),
    (LATENTS, Deployment(3, dcp=2)),
    (LATENTS, Deployment(16)),
    (LATENTS, Deployment(2, cp=4, sharded=False)),
    (GQA, Deployment(6)),
    (GQA, Deployment(16, cp=2)),
    (INDEXER, Deployment(1, dcp=8)),
]


@cache
def many_pages() -> list[str]:
    return path_of(100_000, 1)


@pytest.mark.parametrize(("model", "deployment"), COPIES, ids=str)
def test_pages_are_spread_evenly_over_replicas(model: Model, deployment: Deployment) -> None:
    phases = deployment.dcp if not model.rows else 1
    world = World(model, CUT._replace(phases=phases), pages=1)
    lanes = [m.client._lanes[0] for m in world.fleet(MemoryStore(), deployment)]
    alike: dict[object, list[int]] = {}
    for n, seat in enumerate(seats(deployment)):
        alike.setdefault(holding(model, deployment, seat, 48, 0), []).append(n)
    for group in list(alike.values())[:2]:
        written = Counter(n for page in many_pages() for n in group if lanes[n].writes(page))
        assert sum(written.values()) == len(many_pages())  # each by one
        fair = len(many_pages()) / len(group)
        assert len(group) == len(written)
        assert all(abs(count / fair - 1) < 0.05 for count in written.values())


@pytest.mark.parametrize(("model", "deployment"), COPIES, ids=str)
def test_replica_zero_writes_all_where_asked(model: Model, deployment: Deployment) -> None:
    phases = deployment.dcp if not model.rows else 1
    world = World(model, CUT._replace(phases=phases), pages=6)
    assert world.save_at_once(deployment, writers="first") == world.objects
    store = MemoryStore()
    for member in world.fleet(store, deployment, filled=True, writers="first"):
        first = member.save(world.path)
        assert member.save(world.path).stored == 0  # asked again, and still not its to write
        assert first.existed == 0
    assert contents(store) == world.objects


def turn(page: str, count: int) -> int:
    return int(page[:16], 16) % count


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_replica_that_never_saves_costs_one_more_save_of_the_path(count: int) -> None:
    world, store = World(LATENTS, CUT, pages=12), MemoryStore()
    silent = turn(world.path[0], count)  # whose the first page is: nothing is usable without it
    members = [
        world.member(store, Deployment(count), seat, filled=True)
        for seat in seats(Deployment(count))
        if seat.tp != silent
    ]
    for member in members:
        member.save(world.path)
    reader = world.member(store, Deployment(), Seat(0, 0, 0, 0))
    behind = [member.save(world.path) for member in members]
    assert reader.load(world.path).pages == 12
    assert reader.pool.holds(range(12))
    assert contents(store) == world.objects
    assert sum(report.stored for report in behind) > 0
    assert [member.save(world.path).stored for member in members] == [0] * len(members)


def test_a_page_left_to_another_is_written_once_asked_again() -> None:
    world, store = World(LATENTS, CUT, pages=12), MemoryStore()
    member = world.member(store, Deployment(2), Seat(0, 0, 0, 0), filled=True)
    mine = [turn(page, 2) == 0 for page in world.path]
    assert True in mine
    assert False in mine
    first = member.save(world.path)
    assert (first.pages, first.stored) == (sum(mine), 2 * sum(mine))
    assert {key[:64] for key in contents(store) if key[:3] != "ns_"} == {
        page for page, own in zip(world.path, mine, strict=True) if own
    }
    second = member.save(world.path)
    assert (second.existed, second.stored) == (2 * sum(mine), 2 * (12 - sum(mine)))
    assert contents(store) == world.objects


def test_a_hole_before_a_later_stored_page_is_filled_at_once() -> None:
    world = World(LATENTS, CUT, pages=12)
    store = filled_store(world)
    foreign = [n for n, page in enumerate(world.path) if turn(page, 2) == 1]
    hole, last = foreign[0], foreign[-1]
    tail = world.path[last:]
    store.delete([k for k in world.objects if k.startswith((world.path[hole], *tail))])
    fresh = world.member(store, Deployment(2), Seat(0, 0, 0, 0), filled=True)
    report = fresh.save(world.path)  # a client that was never asked for these pages before
    own_tail = [page for page in tail if turn(page, 2) == 0]
    assert report.stored == 2 * (1 + len(own_tail))
    found = contents(store)
    assert found == {
        key: data
        for key, data in world.objects.items()
        if key[:64] not in tail or key[:64] in own_tail
    }


def test_one_missing_chunk_of_a_page_is_filled_alone() -> None:
    world = World(LATENTS, CUT, pages=12)
    store = filled_store(world)
    foreign = next(page for page in world.path[:-1] if turn(page, 2) == 1)
    [gone, _] = sorted(key for key in world.objects if key.startswith(foreign))
    store.delete([gone])
    member = world.member(store, Deployment(2), Seat(0, 0, 0, 0), filled=True)
    assert member.save(world.path).stored == 1
    assert contents(store) == world.objects


def test_a_damaged_page_of_another_replica_is_healed() -> None:
    world = World(LATENTS, CUT, pages=12)
    store = filled_store(world)
    last = max(n for n, page in enumerate(world.path) if turn(page, 2) == 1)
    key = next(key for key in world.objects if key.startswith(world.path[last]))
    data = bytearray(world.objects[key])
    at = data.index(payload(LATENTS, _cell(key), 12, last)[:4])
    data[at] ^= 1
    store._objects[key] = (bytes(data), 0.0)
    member = world.member(store, Deployment(2), Seat(0, 0, 0, 0))
    assert member.load(world.path).pages == last
    member.pool.fill(range(12))
    for _ in range(2):
        member.save(world.path)
    assert contents(store) == world.objects


def _cell(key: str) -> Cell:
    return next(cell for cell in cells(LATENTS, CUT) if key.endswith(cell.suffix))


def test_every_component_leaves_pages_to_other_replicas_by_itself() -> None:
    worlds = [World(LATENTS, CUT, pages=12), World(INDEXER, Cut((0, 2)), pages=12)]
    store, deployment, seat = MemoryStore(), Deployment(4), Seat(0, 0, 0, 1)
    pools = [world.pool(deployment, seat).fill(range(12)) for world in worlds]
    parts = {
        world.namespace.component: Component(world.namespace, pool.cache)
        for world, pool in zip(worlds, pools, strict=True)
    }
    client = Client(store, parts, rank_of(deployment, seat))
    slots = {name: pool.table for name, pool in zip(parts, pools, strict=True)}
    mine = {page for page in worlds[0].path if turn(page, 4) == 1}
    report = client.save(worlds[0].path, slots)
    found = {key[:64] for key in contents(store) if key[:3] != "ns_"}
    assert found == mine
    assert report.stored == 3 * len(mine)
    assert client.save(worlds[0].path, slots).stored == 3 * (12 - len(mine))
    assert contents(store) == worlds[0].objects | worlds[1].objects


def test_replicas_one_after_the_other_write_each_byte_once() -> None:
    world, store = World(LATENTS, CUT, pages=24), MemoryStore()
    reports = world.save(store, Deployment(8))
    assert contents(store) == world.objects
    assert sum(report.stored for report in reports) == 24 * 2
