"""Client: what any topology writes any other reads, each rank its own bytes."""

from pathlib import Path

import pytest

from tests.client.world import POISON, World
from unikv import KVSpec, Topology, open_store, page_hashes
from unikv.backends.memory import MemoryStore

TOPOLOGIES = [
    Topology(),
    Topology(tp=2),
    Topology(tp=4),
    Topology(pp=3),
    Topology(tp=2, pp=2, pp_layers=(4, 2)),
    Topology(tp=8),
    Topology(tp=4, pp=3),
]


@pytest.mark.parametrize("reader", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("writer", TOPOLOGIES, ids=str)
def test_every_topology_reads_what_every_other_wrote(
    world: World, store: MemoryStore, writer: Topology, reader: Topology
) -> None:
    reports = world.save(store, writer)
    assert sum(r.stored for r in reports) == 5 * 3 * 4
    assert sum(r.existed for r in reports) == 0
    for side, report in world.load(store, reader):
        assert report.pages == 5
        assert report.stopped is None
        assert world.holds(side, 5)
        assert report.amplification == 1


@pytest.mark.parametrize("reader", [Topology(), Topology(tp=3), Topology(pp=2)], ids=str)
@pytest.mark.parametrize("writer", [Topology(), Topology(tp=3), Topology(pp=3)], ids=str)
def test_B100_latents_are_stored_once_whatever_tp(
    latents: World, store: MemoryStore, writer: Topology, reader: Topology
) -> None:
    reports = latents.save(store, writer)
    assert sum(r.stored for r in reports) == 5 * 3
    for side, report in latents.load(store, reader):
        assert report.pages == 5
        assert latents.holds(side, 5)


def test_writers_first_leaves_all_to_replica_zero(latents: World, store: MemoryStore) -> None:
    reports = latents.save(store, Topology(tp=3), writers="first")
    assert [r.stored for r in reports] == [15, 0, 0]
    assert [r.pages for r in reports] == [5, 0, 0]


def test_striped_writers_share_pages_by_hash(latents: World, store: MemoryStore) -> None:
    reports = latents.save(store, Topology(tp=3))
    owners = [int(page[:16], 16) % 3 for page in latents.pages]
    assert [r.pages for r in reports] == [owners.count(i) for i in range(3)]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".tmp" not in path.parts
    }


def test_objects_do_not_depend_on_the_writers_topology(world: World, tmp_path: Path) -> None:
    trees = []
    for i, topology in enumerate(TOPOLOGIES):
        folder = tmp_path / str(i)
        store = open_store(folder.as_uri())
        world.save(store, topology)
        store.close()
        trees.append(tree(folder))
    assert len(trees[0]) == 5 * 3 * 4 + 1  # and the hint record
    assert all(other == trees[0] for other in trees[1:])


def test_a_load_larger_than_its_staging_goes_by_windows(world: World, store: MemoryStore) -> None:
    world.save(store, Topology(), staging_bytes=40_000)
    [(side, report)] = world.load(store, Topology(), staging_bytes=40_000)
    assert report.pages == 5
    assert world.holds(side, 5)


def test_a_reader_of_a_part_reads_its_share_exactly(world: World, store: MemoryStore) -> None:
    world.save(store, Topology())
    payload = 5 * world.spec.page_bytes
    for _, report in world.load(store, Topology(tp=2, pp=3)):
        assert report.bytes_read - report.bytes_headers == payload // 6
        assert report.bytes_needed == payload // 6


def test_a_second_save_stores_nothing(world: World, store: MemoryStore) -> None:
    world.save(store, Topology())
    [report] = world.save(store, Topology())
    assert (report.stored, report.existed, report.bytes_written) == (0, 60, 0)


def test_B92_a_hole_is_reported_then_filled_alone(world: World, store: MemoryStore) -> None:
    world.save(store, Topology())
    gone = [e.key for e in store.list(world.pages[3])]
    store.delete(gone[:1])
    [(side, report)] = world.load(store, Topology())
    assert report.pages == 3
    assert world.holds(side, 3)
    assert gone[0] in (report.stopped or "")
    assert side.client.match(world.pages)[:3] == (3, True, gone[0])
    [saved] = world.save(store, Topology())
    assert (saved.stored, saved.existed) == (1, 59)
    [(side, report)] = world.load(store, Topology())
    assert report.pages == 5


def test_B82_pages_behind_a_missing_head_are_not_usable(world: World, store: MemoryStore) -> None:
    side = world.side(store, Topology().rank(), filled=True)
    side.client.save(world.pages[2:], side.slots[2:], start=2)
    match = side.client.match(world.pages)
    assert (match.pages, match.exact) == (0, True)
    assert (match.first_missing or "").startswith(world.pages[0])
    [(side, report)] = world.load(store, Topology())
    assert report.pages == 0
    assert world.holds(side, 0)


def test_B39_a_suffix_goes_to_its_own_slots_only(world: World, store: MemoryStore) -> None:
    world.save(store, Topology())
    side = world.side(store, Topology().rank(), seed=9)
    report = side.client.load(world.pages[3:], side.slots[3:])
    assert report.pages == 2
    expected = side.slots[3:].flatten().sort().values
    assert side.touched().nonzero().flatten().equal(expected)
    assert (side.pools[0][0][side.slots[:3].flatten()] == POISON).all()


def test_no_pages_is_no_work(world: World, store: MemoryStore) -> None:
    side = world.side(store, Topology().rank())
    assert side.client.load([], side.slots[:0]).pages == 0
    assert side.client.save([], side.slots[:0]).ok
    assert side.client.match([])[:3] == (0, True, None)


def test_a_stage_without_layers_of_the_component_loads_all_and_reads_nothing(
    store: MemoryStore,
) -> None:
    spec = KVSpec.mha(
        layers=2, layer_ids=(0, 1), kv_heads=1, head_dim=4, dtype="int32", page_tokens=4
    )
    world = World(spec, pages_count=2)
    hybrid = KVSpec.mha(
        layers=2, layer_ids=(0, 2), kv_heads=1, head_dim=4, dtype="int32", page_tokens=4
    )
    far = World(hybrid, pages_count=2)
    topology = Topology(pp=2, pp_layers=(4, 3))
    far.save(store, topology)
    for side, report in far.load(store, topology):
        assert report.pages == 2
        assert far.holds(side, 2)
        assert report.requests == (2 if side.rank.pp == 0 else 0)
    assert world.namespace.digest != far.namespace.digest


def test_B37_a_partial_page_is_neither_stored_nor_loaded_over_the_local_prefix(
    store: MemoryStore,
) -> None:
    spec = KVSpec.mha(layers=1, kv_heads=1, head_dim=1, dtype="int32", page_tokens=256)
    stored = page_hashes(range(14_820), 256)
    local = 14_816 // 256  # whole pages that are in the pool already
    assert (len(stored), len(stored) * 256) == (57, 14_592)  # the tail of 228 tokens is dropped
    assert stored[local:] == []
    world = World(spec, pages_count=3)
    world.save(store, Topology())
    side = world.side(store, Topology().rank(), seed=4)
    report = side.client.load(world.pages[2:], side.slots[2:])
    assert report.pages == 1
    assert side.touched().nonzero().flatten().equal(side.slots[2].sort().values)
