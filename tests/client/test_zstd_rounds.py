"""Client: the two rounds of codec zstd, what goes wrong between them, damage: B48, B56, B67."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.test_damage import assert_ends_at, assert_heals, keys_of, read, swap, write
from tests.client.test_zstd import ALONE, TOPOLOGIES, world_of
from tests.client.world import World
from tests.components.bundle_faults import check
from tests.components.bundle_models import DSA
from tests.components.bundles import World as BundleWorld
from unikv import KVSpec, Topology, codec
from unikv.backends.memory import MemoryStore
from unikv.errors import StoreError
from unikv.header import parse_header
from unikv.store import Outcome, Outcomes, Span, Store


@pytest.fixture
def zstd() -> World:
    return world_of()


def small() -> World:
    """Return a world of one object a page, of some 900 bytes."""
    spec = KVSpec.mha(layers=2, kv_heads=1, head_dim=8, dtype="int32", page_tokens=4)
    return World(spec, pages_count=3, options={"codec": "zstd"})


# Two rounds


class Watched(MemoryStore):
    """A store that shows the ranges of each get, and does something after the first."""

    def __init__(self, then: Callable[["Watched"], object] = lambda _: None) -> None:
        super().__init__()
        self.rounds: list[list[tuple[str, int, int]]] = []
        self.then = then

    def get(self, spans: Sequence[Span]) -> Outcomes:
        outcomes = super().get(spans)
        if not spans[0].key.startswith("ns_"):
            self.rounds.append([(span.key, span.start, span.stop) for span in spans])
            if len(self.rounds) == 1:
                self.then(self)
        return outcomes


def test_a_read_is_two_rounds_of_headers_and_of_no_more_than_the_slabs_wanted() -> None:
    world, store = world_of(layer_cuts=(0, 6)), Watched()
    world.save(store, ALONE)
    side = world.side(store, Topology(pp=3).rank(pp=1), siblings=False)
    assert side.client.load(world.pages, side.slots).pages == 5
    headers, slabs = store.rounds
    size = side.client._lanes[0].format.header_bytes
    assert [(start, stop) for _, start, stop in headers] == [(0, size)] * 20
    for key, start, stop in slabs:
        table = parse_header(read(store, key)).table
        lengths = [slab.stored_bytes for slab in table]
        assert (start, stop) == (size + sum(lengths[:2]), size + sum(lengths[:4]))


def test_components_of_both_codecs_share_a_read() -> None:
    caches = dict(DSA.caches)
    caches["indexer"] = replace(
        caches["indexer"], fields={**caches["indexer"].fields, "codec": "zstd"}
    )
    world, store = BundleWorld(replace(DSA, caches=caches)), Watched()
    world.save(store)
    party = world.party(store, ALONE.rank(), siblings=False)
    check(party, party.load(), [])
    first, second = store.rounds
    digest = world.namespaces["indexer"].digest
    assert all(digest in key for key, _, _ in second)
    assert {digest in key for key, _, _ in first} == {True, False}


def test_an_object_that_goes_between_the_rounds_is_a_miss() -> None:
    world = small()
    [key] = [world.pages[1] + tail for tail in _tails(world)]
    store = Watched(lambda store: store.delete([key]))
    world.save(store, ALONE)
    [(side, report)] = world.load(store, ALONE, siblings=False)
    assert report.pages == 1
    assert report.failed[0].kind == "missing"
    assert world.holds(side, 1)


def test_an_object_that_another_writer_replaces_between_the_rounds_is_never_mixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, other = small(), MemoryStore()
    with monkeypatch.context() as patch:
        patch.setattr(codec, "WORTH", 1)  # the other compresses nothing
        world.save(other, ALONE)
    [key] = keys_of(other, world.pages[1])
    store = Watched()
    world.save(store, ALONE)
    assert read(store, key) != read(other, key)
    store.rounds.clear()
    store.then = lambda store: write(store, key, read(other, key))
    side = world.side(store, ALONE.rank(), siblings=False)
    report = side.client.load(world.pages, side.slots)
    assert report.pages == 1
    assert report.failed[0].kind == "damaged"
    assert world.holds(side, 1)
    assert side.client.load(world.pages, side.slots).pages == 3  # what is there now is whole
    assert world.holds(side, 3)
    assert side.client.match(world.pages).pages == 3


class Failing(MemoryStore):
    """A store that fails some gets of slabs."""

    def __init__(self, times: int, *, retryable: bool) -> None:
        super().__init__()
        self.times, self.retryable = times, retryable

    def get(self, spans: Sequence[Span]) -> Outcomes:
        if self.times == 0 or spans[0].start == 0:
            return super().get(spans)
        self.times -= 1
        error = StoreError("no slab today")
        error.retryable = self.retryable
        return Outcomes([Outcome.FAILED] * len(spans), dict.fromkeys(range(len(spans)), error))


def test_a_failure_of_the_second_round_that_passes_is_tried_again() -> None:
    world, store = small(), Failing(2, retryable=True)
    world.save(store, ALONE)
    [(side, report)] = world.load(store, ALONE, siblings=False)
    assert report.pages == 3
    assert world.holds(side, 3)


@pytest.mark.parametrize("retryable", [False, True])
def test_a_failure_of_the_second_round_that_stays_is_an_error_and_no_damage(
    *, retryable: bool
) -> None:
    world, store = small(), Failing(99, retryable=retryable)
    world.save(store, ALONE)
    side = world.side(store, ALONE.rank(), siblings=False)
    report = side.client.load(world.pages, side.slots)
    assert report.pages == 0
    assert report.failed[0].kind == "error"
    assert "no slab today" in (report.stopped or "")
    assert world.holds(side, 0)
    assert side.client.save(world.pages, side.slots).stored == 0


# Damage


@pytest.mark.parametrize("verify", [True, False])
def test_B56_no_flipped_byte_that_a_load_covers_reaches_the_pool(
    store: MemoryStore, *, verify: bool
) -> None:
    world = small()
    world.save(store, ALONE)
    [key] = keys_of(store, world.pages[1])
    good = read(store, key)
    header = parse_header(good)
    side = world.side(store, ALONE.rank(), verify=verify)
    covered = header.header_bytes + (header.payload_bytes if verify else 0)
    for at in range(covered):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        write(store, key, bad)
        report = side.client.load(world.pages, side.slots)
        if verify or not 128 <= at < 192:  # tags alone are believed: their object is whole
            assert report.pages == 1
            assert key in (report.stopped or "")
            assert world.holds(side, 1)
    if verify:
        write(store, key, bad)
        assert_heals(world, store, 1)


def test_B67_every_truncation_is_a_miss_and_heals(store: MemoryStore) -> None:
    world = small()
    world.save(store, ALONE)
    [key] = keys_of(store, world.pages[1])
    good = read(store, key)
    header = parse_header(good)
    side = world.side(store, ALONE.rank(), filled=True)
    for size in range(header.header_bytes + header.payload_bytes):
        write(store, key, good[:size])
        fresh = world.side(store, ALONE.rank())
        report = fresh.client.load(world.pages, fresh.slots)
        assert report.pages == 1
        assert world.holds(fresh, 1)
    assert report.failed[0].kind == "damaged"
    assert (
        f"size of object {key}: {size} bytes are stored, want {len(good)}"
        in report.failed[0].reason
    )
    assert side.client.load(world.pages, side.slots).pages == 1
    assert side.client.save(world.pages, side.slots).stored == 1
    assert read(store, key) == good


@pytest.mark.parametrize("size", [0, 511, 512])
def test_a_size_that_no_object_can_have_is_replaced_unasked(store: MemoryStore, size: int) -> None:
    world = small()
    world.save(store, ALONE)
    [key] = keys_of(store, world.pages[1])
    good = read(store, key)
    for bad in (good[:size], good + bytes(4096)):
        write(store, key, bad)
        assert world.side(store, ALONE.rank()).client.match(world.pages).pages == 1
        assert world.save(store, ALONE)[0].stored == 1
        assert read(store, key) == good


def test_B48_two_objects_swapped_are_not_taken_for_each_other(
    zstd: World, store: MemoryStore
) -> None:
    zstd.save(store, ALONE)
    keys = keys_of(store, zstd.pages[2])
    swap(store, keys[0], keys[1])
    assert_ends_at(zstd, store, 2, "header of object")
    assert_heals(zstd, store, 2)


def test_one_load_finds_all_that_is_bad_of_a_page(zstd: World, store: MemoryStore) -> None:
    zstd.save(store, ALONE)
    for n, key in enumerate(keys_of(store, zstd.pages[2])):
        data = read(store, key)
        data[(0, 512)[n % 2]] ^= 1  # headers and slabs
        write(store, key, data)
    assert_heals(zstd, store, 2)


@settings(max_examples=40)
@given(st.data())
def test_no_bytes_under_a_key_reach_a_pool_unless_they_are_its_own(data: st.DataObject) -> None:
    world, store = world_of(layer_cuts=(0, 3, 6)), MemoryStore()
    world.save(store, ALONE)
    keys = [e.key for e in store.list() if not e.key.startswith("ns_")]
    for _ in range(data.draw(st.integers(1, 4))):
        key = data.draw(st.sampled_from(keys))
        raw = read(store, key)
        match data.draw(st.sampled_from(["flip", "cut", "grow", "other"])):
            case "flip":
                raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
            case "cut":
                del raw[data.draw(st.integers(0, len(raw))) :]
            case "grow":
                raw += data.draw(st.binary(max_size=40))
            case _:
                raw = read(store, data.draw(st.sampled_from(keys)))
        write(store, key, raw)
    topology = data.draw(st.sampled_from(TOPOLOGIES))
    for side, report in world.load(store, topology):
        assert world.holds(side, report.pages)


def _tails(world: World) -> Sequence[str]:
    store: Store = MemoryStore()
    return world.side(store, ALONE.rank()).client._lanes[0].read.key_tails
