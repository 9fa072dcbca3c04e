"""Client: damaged, foreign and short objects end the prefix, never reach the pool, and heal."""

import pytest

from tests.client.world import World
from unikv import KVSpec, Topology
from unikv.backends.memory import MemoryStore
from unikv.store import Item, Span, Store


def read(store: Store, key: str) -> bytearray:
    [size] = store.stat([key])
    assert size is not None
    data = bytearray(size)
    assert store.get([Span(key, 0, size, (memoryview(data),))]).ok
    return data


def write(store: Store, key: str, data: bytes | bytearray) -> None:
    assert store.put([Item(key, (data,))], replace=True).ok


def keys_of(store: Store, page: str) -> list[str]:
    return sorted(entry.key for entry in store.list(page))


def assert_ends_at(world: World, store: Store, pages: int, *names: str) -> None:
    """A load stops before page ``pages``, names what it should, and leaves the rest alone."""
    [(side, report)] = world.load(store, Topology())
    assert report.pages == pages
    assert world.holds(side, pages)
    assert len(report.failed) == 1
    assert report.failed[0].page == pages
    for name in names:
        assert name in (report.stopped or "")


def assert_heals(world: World, store: Store, pages: int) -> None:
    """One save by a client that met the damage replaces all of it; then all pages load."""
    side = world.side(store, Topology().rank(), seed=5, filled=True)
    assert side.client.load(world.pages, side.slots).pages == pages
    assert side.client.match(world.pages).pages == pages
    assert side.client.save(world.pages, side.slots).stored >= 1
    assert side.client.match(world.pages).first_missing is None
    [(fresh, report)] = world.load(store, Topology())
    assert report.stopped is None
    assert world.holds(fresh, world.pages_count)


def small(kind: str) -> World:
    spec = {
        "mha": KVSpec.mha(layers=2, kv_heads=1, head_dim=2, dtype="int32", page_tokens=2),
        "mla": KVSpec.mla(layers=2, dim=3, dtype="int32", page_tokens=2),
    }[kind]
    return World(spec, pages_count=3)


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_B56_no_flipped_byte_that_a_load_covers_reaches_the_pool(
    store: MemoryStore, kind: str
) -> None:
    world = small(kind)
    world.save(store, Topology())
    [key] = keys_of(store, world.pages[1])
    good = read(store, key)
    side = world.side(store, Topology().rank())
    form = side.client._lanes[0].format
    covered = form.header_bytes + form.grid.chunks[0].payload_bytes
    for at in range(covered):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        write(store, key, bad)
        report = side.client.load(world.pages, side.slots)
        assert report.pages == 1
        assert key in (report.stopped or "")
        assert world.holds(side, 1)
    write(store, key, bad)
    assert_heals(world, store, 1)


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_B67_every_truncation_is_a_miss_and_heals(store: MemoryStore, kind: str) -> None:
    world = small(kind)
    world.save(store, Topology())
    [key] = keys_of(store, world.pages[1])
    good = read(store, key)
    side = world.side(store, Topology().rank())
    form = side.client._lanes[0].format
    covered = form.header_bytes + form.grid.chunks[0].payload_bytes
    for size in range(covered):
        write(store, key, good[:size])
        assert side.client.match(world.pages).pages == 1
        report = side.client.load(world.pages, side.slots)
        assert report.pages == 1
        assert world.holds(side, 1)
    for size in (0, covered - 1, len(good) - 1, len(good) + 1):
        write(store, key, (good + b"x")[:size])
        [saved] = world.save(store, Topology())
        assert saved.stored == 1  # another size cannot be the object: replaced unasked
        assert read(store, key) == good


def swap(store: Store, one: str, other: str) -> None:
    first, second = read(store, one), read(store, other)
    write(store, one, second)
    write(store, other, first)


def test_B48_two_objects_swapped_are_not_taken_for_each_other(
    world: World, store: MemoryStore
) -> None:
    world.save(store, Topology())
    keys = keys_of(store, world.pages[2])
    swap(store, keys[0], keys[1])
    assert_ends_at(world, store, 2, "header of object")
    assert_heals(world, store, 2)


def test_the_same_chunk_of_another_page_is_not_taken(world: World, store: MemoryStore) -> None:
    world.save(store, Topology())
    swap(store, keys_of(store, world.pages[1])[3], keys_of(store, world.pages[4])[3])
    assert_ends_at(world, store, 1, world.pages[1])
    assert_heals(world, store, 1)


def test_another_namespaces_object_under_this_key_is_not_taken(store: MemoryStore) -> None:
    world = small("mha")
    other = World(world.spec, pages_count=3, options={"numerics": "fp8-attn"})
    world.save(store, Topology())
    other.save(store, Topology())
    mine, theirs = keys_of(store, world.pages[0])
    if world.namespace.digest not in mine:
        mine, theirs = theirs, mine
    write(store, mine, read(store, theirs))
    assert_ends_at(world, store, 0, mine)
    assert_heals(world, store, 0)


def test_payload_rotated_between_head_groups_names_slab_and_object(
    world: World, store: MemoryStore
) -> None:
    world.save(store, Topology())
    [form] = [world.side(store, Topology().rank()).client._lanes[0].format]
    keys = [key for key in keys_of(store, world.pages[3]) if "_L0-2_" in key]
    objects = [read(store, key) for key in keys]
    stop = form.header_bytes + form.grid.chunks[0].payload_bytes
    for i, key in enumerate(keys):
        other = objects[(i + 1) % len(keys)]
        body = other[form.header_bytes : stop]
        write(store, key, objects[i][: form.header_bytes] + body + objects[i][stop:])
    assert_ends_at(world, store, 3, "slab 0", f"object {keys[0]}")
    assert_heals(world, store, 3)


def test_B57_a_bad_slab_stops_only_who_reads_it(store: MemoryStore) -> None:
    spec = KVSpec.mha(layers=8, kv_heads=1, head_dim=2, dtype="int32", page_tokens=2)
    world = World(spec, pages_count=2)
    world.save(store, Topology())
    [key] = keys_of(store, world.pages[1])
    data = read(store, key)
    chunk = world.side(store, Topology().rank()).client._lanes[0].read.chunks[0]
    form = world.side(store, Topology().rank()).client._lanes[0].format
    data[form.header_bytes + 5 * chunk.slab_bytes] ^= 1
    write(store, key, data)
    (low, low_report), (high, high_report) = world.load(store, Topology(pp=2))
    assert low_report.pages == 2
    assert world.holds(low, 2)
    assert high_report.pages == 1
    assert "slab 5" in (high_report.stopped or "")
    assert world.holds(high, 1)


def test_without_verification_a_flip_goes_through_so_verification_is_what_stops_it(
    store: MemoryStore,
) -> None:
    world = small("mha")
    world.save(store, Topology())
    [key] = keys_of(store, world.pages[0])
    data = read(store, key)
    form = world.side(store, Topology().rank()).client._lanes[0].format
    data[form.header_bytes] ^= 1
    write(store, key, data)
    [(side, report)] = world.load(store, Topology(), verify=False)
    assert report.pages == 3
    assert not world.holds(side, 3)


@pytest.mark.parametrize("tag_key", [b"s" * 32])
def test_keyed_tags_need_their_key(store: MemoryStore, tag_key: bytes) -> None:
    base = small("mha")
    world = World(base.spec, pages_count=3, options={"tags": "blake3_keyed"})
    world.save(store, Topology(), tag_key=tag_key)
    [(side, report)] = world.load(store, Topology(), tag_key=tag_key)
    assert report.pages == 3
    [(side, report)] = world.load(store, Topology(), tag_key=b"t" * 32)
    assert report.pages == 0
    assert world.holds(side, 0)
