"""Cross-grid limits: siblings that a reader must leave alone, and staging that must do."""

import pytest

from tests.topology.fleets import World, filled_store, rank_of
from tests.topology.oracle import Cut, Deployment, Model, Seat, seats
from tests.topology.test_cross_grid import KV, LATENTS, ONE, PAGES, announced, worlds
from unikv import Client, Component
from unikv.backends.memory import MemoryStore
from unikv.hints import Hint, encode_hint, hint_key
from unikv.reports import LoadReport

KEYED = (("tags", "blake3_keyed"),)
SECRET = bytes(range(32))


def test_tags_tell_families_apart() -> None:
    own, sibling = worlds(KV, Cut((0, 3, 6), 2))
    keyed = World(KV, sibling.cut, PAGES, KEYED)
    assert keyed.namespace.family != own.namespace.family == sibling.namespace.family


def test_a_sibling_whose_tags_need_a_key_is_skipped_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, sibling = worlds(KV, Cut((0, 3, 6), 2))
    keyed = World(KV, Cut((0, 6), 4), PAGES, KEYED)
    store = announced((sibling, 3))
    hints = [Hint(keyed.namespace, ""), Hint(sibling.namespace, "")]
    monkeypatch.setattr("unikv.siblings.read_hints", lambda _store, _family: hints)
    [(member, _)] = own.load(store, Deployment(), pages=3)
    assert member.client.match(own.path).pages == 3


def test_keyed_siblings_read_each_other_with_the_key_and_damage_with_another() -> None:
    own = World(KV, Cut((0, 2, 4, 6), 1), PAGES, KEYED)
    other = World(KV, Cut((0, 3, 6), 2), PAGES, KEYED)
    store = MemoryStore()
    other.save(store, Deployment(2, (3, 3)), tag_key=SECRET)
    own.load(store, Deployment(4, (2, 4)), tag_key=SECRET)
    own.load(store, Deployment(4, (2, 4)), pages=0, tag_key=SECRET[::-1])


@pytest.mark.parametrize("phases", [1, 2, 3])
def test_a_sibling_whose_phases_do_not_make_up_the_readers_is_skipped(phases: int) -> None:
    model = Model(6, 4, (2, 1), page=48)
    own = World(model, Cut((0, 6), 4, 4, 2), PAGES)
    sibling = World(model, Cut((0, 6), 4, phases, 2 if phases > 1 else 1), PAGES)
    store = announced((sibling, PAGES), (own, 2))
    own.load(store, Deployment(dcp=4, interleave=2), pages=2)
    own.load(store, Deployment(), pages=PAGES)
    other = World(model, Cut((0, 6), 4, 4, 1), PAGES)  # as many phases, another interleave
    own.load(announced((other, PAGES), (own, 2)), Deployment(dcp=4, interleave=2), pages=2)


def test_records_that_are_no_hints_are_passed_over() -> None:
    own, sibling = worlds(KV, Cut((0, 3, 6), 2))
    foreign = World(Model(6, 4, (2, 2)), Cut((0, 6), 4), PAGES)
    store = announced((sibling, PAGES))
    family = own.namespace.family
    good = store._objects.pop(hint_key(family, 0))
    store._objects[hint_key(family, 0)] = (good[0][:-1] + b"\xff", 0.0)
    store._objects[hint_key(family, 1)] = (b"", 0.0)
    store._objects[hint_key(family, 2)] = (encode_hint(foreign.namespace, 2), 0.0)
    own.load(store, Deployment(), pages=0)
    store._objects[hint_key(family, 15)] = (encode_hint(sibling.namespace, 15), 0.0)
    own.load(store, Deployment(2))


def test_a_sibling_page_larger_than_staging_is_left_alone() -> None:
    wide = Model(6, 4, (64, 64))
    own, sibling = World(wide, Cut((0, 6), 1), PAGES), World(wide, Cut((0, 6), 4), PAGES)
    deployment = Deployment(4)
    need = 6 * 16 * 128 * 4 + 4096
    for member in own.fleet(announced((sibling, PAGES)), deployment, staging_bytes=need):
        assert member.load(own.path).pages == 0
    own.load(announced((sibling, PAGES)), deployment, staging_bytes=8 * need)


def pair(store: MemoryStore, staging: int, cut: Cut) -> LoadReport:
    """Load a large component by its own grid beside a small one that only a sibling holds."""
    large = World(Model(6, 4, (16, 16)), Cut((0, 6), 4), PAGES)
    small = World(Model(6, 4, (4, 4), component=1), Cut((0, 6), 1), PAGES)
    sibling = World(small.model, cut, PAGES)
    store._objects.update(filled_store(large)._objects)
    store._objects.update(announced((sibling, PAGES))._objects)
    deployment, seat = Deployment(4), Seat(0, 0, 0, 2)
    pools = [world.pool(deployment, seat) for world in (large, small)]
    parts = {
        world.namespace.component: Component(world.namespace, pool.cache)
        for world, pool in zip((large, small), pools, strict=True)
    }
    client = Client(store, parts, rank_of(deployment, seat), staging_bytes=staging)
    slots = {name: pool.table for name, pool in zip(parts, pools, strict=True)}
    report = client.load(large.path, slots)
    assert all(pool.holds(range(report.pages)) for pool in pools)
    return report


@pytest.mark.parametrize("staging", [58_000, 65_000, 70_000, 1_000_000])
def test_a_component_read_by_a_sibling_leaves_room_for_the_others(staging: int) -> None:
    report = pair(MemoryStore(), staging, Cut((0, 6), 4))
    assert report.pages in (0, PAGES)
    assert report.pages or staging < 1_000_000


def test_each_component_is_read_by_the_grid_that_holds_most_of_it() -> None:
    report = pair(MemoryStore(), 1 << 20, Cut(tuple(range(7)), 2))
    assert report.pages == PAGES
    assert report.requests == PAGES * (1 + 6)


def test_latents_dealt_out_over_tensor_ranks_are_read_by_a_sibling() -> None:
    own, sibling = worlds(LATENTS, Cut((0, 6)))
    deployment = Deployment(3, (2, 4), sharded=True)
    for member, report in own.load(announced((sibling, PAGES)), deployment, rotation=2):
        own.check_cost(member, report, sibling.cut)
    assert len(seats(deployment)) == 6
    assert own.member(MemoryStore(), deployment, ONE).load(own.path).pages == 0
