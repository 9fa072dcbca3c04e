"""Client: codec zstd changes what is stored and nothing of what is loaded."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.client.test_damage import keys_of, read, write
from tests.client.world import World
from tests.components.bundle_content import Model
from tests.components.bundle_faults import check
from tests.components.bundle_models import DSA, GEMMA, HYBRID, SCALED, SIDECARS
from tests.components.bundles import World as BundleWorld
from unikv import Catalog, KVSpec, Topology, codec, open_store, streaming
from unikv.backends.memory import MemoryStore
from unikv.errors import MissingExtraError
from unikv.header import parse_header
from unikv.siblings import Siblings

SPEC = KVSpec.mha(layers=6, kv_heads=4, head_dim=3, v_head_dim=5, dtype="int32", page_tokens=4)
GRID = {"layer_cuts": (0, 2, 4, 6), "heads_per_chunk": 1}
ALONE = Topology()
WRITERS = [ALONE, Topology(tp=8), Topology(tp=4, pp=3)]
TOPOLOGIES = [*WRITERS, Topology(tp=2, pp=2, pp_layers=(3, 3))]


def world_of(codec: str = "zstd", **options: Any) -> World:
    return World(SPEC, options={**GRID, "codec": codec, **options})


@pytest.fixture
def zstd() -> World:
    return world_of()


@pytest.mark.parametrize("reader", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_every_topology_reads_what_every_other_wrote(
    zstd: World, store: MemoryStore, writer: Topology, reader: Topology
) -> None:
    reports = zstd.save(store, writer)
    assert sum(r.stored for r in reports) == 5 * 3 * 4
    for side, report in zstd.load(store, reader):
        assert (report.pages, report.stopped) == (5, None)
        assert zstd.holds(side, 5)


KINDS = {"latents, rows": DSA, "windows": GEMMA, "state": HYBRID, "fp8": SCALED, "all": SIDECARS}


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
def test_every_kind_of_component_comes_back(model: Model) -> None:
    caches = {
        name: replace(one, fields={**one.fields, "codec": "zstd"})
        for name, one in model.caches.items()
    }
    coded, store = replace(model, caches=caches), MemoryStore()
    world = BundleWorld(coded)
    world.save(store)
    for topology in model.readers:
        for party in world.parties(store, topology, seed=3):
            check(party, party.load(), [])


def test_objects_do_not_depend_on_the_writers_topology(zstd: World) -> None:
    found = []
    for topology in WRITERS:
        store = MemoryStore()
        zstd.save(store, topology)
        found.append({key: data for key, (data, _) in store._objects.items()})
    assert all(other == found[0] for other in found[1:])


def test_coded_objects_are_smaller_and_are_counted_as_stored(
    zstd: World, store: MemoryStore
) -> None:
    plain = MemoryStore()
    [coded], [whole] = zstd.save(store, ALONE), world_of("none").save(plain, ALONE)
    assert coded.bytes_written < whole.bytes_written
    objects = [e for e in store.list() if not e.key.startswith("ns_")]
    assert coded.bytes_written == sum(entry.size for entry in objects)


def test_a_load_larger_than_its_staging_goes_by_windows(zstd: World, store: MemoryStore) -> None:
    zstd.save(store, ALONE, staging_bytes=40_000)
    [(side, report)] = zstd.load(store, ALONE, staging_bytes=40_000)
    assert report.pages == 5
    assert zstd.holds(side, 5)


@pytest.mark.parametrize("step", [1, 700, 1 << 20])
@pytest.mark.parametrize("cuts", [(0, 6), (0, 2, 4, 6), (0, 1, 5, 6)])
def test_a_streaming_load_fills_layer_by_layer(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, step: int, cuts: Sequence[int]
) -> None:
    monkeypatch.setattr(streaming, "STEP_BYTES", step)  # many layers a step, or one, within chunks
    world = world_of(layer_cuts=cuts)
    world.save(store, ALONE)
    for topology in (ALONE, Topology(tp=2, pp=2, pp_layers=(3, 3))):
        for rank in topology.ranks():
            side = world.side(store, rank, seed=7)
            ticket = side.client.load_async(world.pages, side.slots, stream=True)
            assert ticket.result(20).pages == 5
            assert world.holds(side, 5)


def test_a_streaming_load_of_a_damaged_page_loads_nothing(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    monkeypatch.setattr(streaming, "STEP_BYTES", 1)
    world = world_of(layer_cuts=(0, 6))
    world.save(store, ALONE)
    key = keys_of(store, world.pages[3])[2]
    data = read(store, key)
    data[
        parse_header(data).header_bytes + sum(s.stored_bytes for s in parse_header(data).table) - 1
    ] ^= 1
    write(store, key, data)
    side = world.side(store, ALONE.rank())
    report = side.client.load_async(world.pages, side.slots, stream=True).result(20)
    assert report.pages == 0
    assert "slab 5" in (report.stopped or "")


def test_prefetched_pages_are_loaded(zstd: World, store: MemoryStore) -> None:
    zstd.save(store, ALONE)
    side = zstd.side(store, ALONE.rank())
    with side.client as client:
        assert client.prefetch(zstd.pages).result(20).pages == 5
        report = client.load(zstd.pages, side.slots)
    assert (report.pages, report.prefetched) == (5, 5)
    assert zstd.holds(side, 5)


@pytest.mark.parametrize("options", [{}, {"io": "process"}], ids=["threads", "process"])
def test_an_io_process_packs_and_unpacks(
    zstd: World, tmp_path: Path, options: dict[str, Any]
) -> None:
    store = open_store(tmp_path.as_uri())
    side = zstd.side(store, ALONE.rank(), filled=True, **options)
    with side.client as client:
        assert client.save(zstd.pages, side.slots).stored == 60
    reader = zstd.side(store, ALONE.rank(), seed=4, **options)
    with reader.client as client:
        assert client.match(zstd.pages).pages == 5
        assert client.load(zstd.pages, reader.slots).pages == 5
    assert zstd.holds(reader, 5)
    store.close()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_keyed_tags_need_their_key(store: MemoryStore, codec: str) -> None:
    world = world_of(codec, tags="blake3_keyed")
    world.save(store, ALONE, tag_key=b"s" * 32)
    [(side, report)] = world.load(store, ALONE, tag_key=b"s" * 32)
    assert report.pages == 5
    [(side, report)] = world.load(store, ALONE, tag_key=b"t" * 32)
    assert report.pages == 0
    assert world.holds(side, 0)


# What other writers made


@pytest.mark.parametrize("change", [{"LEVEL": 19}, {"WORTH": 1}], ids=str)
def test_what_another_release_compressed_otherwise_is_read_and_stays(
    monkeypatch: pytest.MonkeyPatch, zstd: World, store: MemoryStore, change: dict[str, int]
) -> None:
    own = MemoryStore()
    zstd.save(own, ALONE)
    with monkeypatch.context() as patch:
        for name, value in change.items():
            patch.setattr(codec, name, value)
        zstd.save(store, ALONE)
    sizes = {e.key: e.size for e in store.list()}
    if "WORTH" in change:
        assert sizes != {e.key: e.size for e in own.list()}
    [report] = zstd.save(store, ALONE)
    assert (report.stored, report.existed) == (0, 60)
    assert {e.key: e.size for e in store.list()} == sizes
    for side, loaded in zstd.load(store, Topology(tp=2, pp=3)):
        assert loaded.pages == 5
        assert zstd.holds(side, 5)


# Siblings


@pytest.mark.parametrize("grid", [GRID, {"layer_cuts": (0, 3, 6), "heads_per_chunk": 2}], ids=str)
@pytest.mark.parametrize("written", ["none", "zstd"])
def test_readers_of_either_codec_read_through_the_other(
    store: MemoryStore, written: str, grid: dict[str, Any]
) -> None:
    other = {"none": "zstd", "zstd": "none"}[written]
    writer, reader = world_of(written, **grid), world_of(other)
    assert writer.namespace.family == reader.namespace.family
    writer.save(store, Topology(tp=2))
    for side, report in reader.load(store, Topology(tp=4, pp=3)):
        assert report.pages == 5
        assert reader.holds(side, 5)
    for side, report in reader.load(store, ALONE, siblings=False):
        assert report.pages == 0
        assert reader.holds(side, 0)


def test_a_catalog_asks_for_coded_objects_and_needs_no_library(
    monkeypatch: pytest.MonkeyPatch, zstd: World, store: MemoryStore
) -> None:
    zstd.save(store, ALONE)
    store.delete(keys_of(store, zstd.pages[3])[:1])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    catalog = Catalog(store, zstd.namespace)
    assert catalog.match(zstd.pages)[:2] == (3, True)
    catalog.close()


def test_without_the_library_a_client_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, zstd: World, store: MemoryStore
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"codec 'zstd' needs zstandard: pip install"):
        zstd.side(store, ALONE.rank())


def test_without_the_library_coded_siblings_are_left_out(
    monkeypatch: pytest.MonkeyPatch, zstd: World, store: MemoryStore
) -> None:
    zstd.save(store, ALONE)
    plain = world_of("none")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    side = plain.side(store, ALONE.rank(), filled=True)
    assert Siblings(side.client._lanes[0], None, 1 << 20).others(store) == []
    assert side.client.load(plain.pages, side.slots).pages == 0
    side.client.save(plain.pages, side.slots)
    assert side.client.load(plain.pages, side.slots).pages == 5
