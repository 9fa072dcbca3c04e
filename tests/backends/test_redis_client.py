"""Pages of a small model through Redis: other topologies, evicted parts, servers that go away."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.client.world import World
from tests.components.bundle_models import DSA
from tests.components.bundles import world_of
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer, valkey_binary
from unikv import Catalog, KVSpec, Topology
from unikv.registry import open_store
from unikv.store import Store
from unikv.testing import content

pytestmark = pytest.mark.redis

CHUNKS = 12  # of a page: 3 layer cuts, 4 heads


@pytest.fixture
def world() -> World:
    spec = KVSpec.mha(layers=6, kv_heads=4, head_dim=3, v_head_dim=5, dtype="int32", page_tokens=4)
    options = {"layer_cuts": (0, 2, 4, 6), "heads_per_chunk": 1}
    return World(spec, pages_count=6, options=options)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(valkey_binary(), tmp_path / "valkey") as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    store = open_store(f"{server.url}?timeout=0.4&connect_timeout=0.4")
    yield store
    store.close()


@pytest.mark.parametrize("reader", [Topology(), Topology(tp=2, pp=2, pp_layers=(4, 2))], ids=str)
@pytest.mark.parametrize("writer", [Topology(tp=4, pp=3), Topology(pp=3)], ids=str)
def test_what_one_topology_wrote_another_reads(
    world: World, store: Store, writer: Topology, reader: Topology
) -> None:
    assert sum(report.stored for report in world.save(store, writer)) == 6 * CHUNKS
    for side, report in world.load(store, reader):
        assert report.pages == 6
        assert report.amplification == 1
        assert world.holds(side, 6)


def test_a_cluster_serves_the_same_pages(world: World, tmp_path: Path) -> None:
    with RedisCluster(valkey_binary(), tmp_path / "cluster") as cluster:
        store = open_store(cluster.url)
        world.save(store, Topology(tp=2))
        for side, report in world.load(store, Topology(pp=3)):
            assert report.pages == 6
            assert world.holds(side, 6)
        store.close()


def test_a_bundle_comes_back_whole(store: Store) -> None:
    """Latents, indexer rows and their kin, each in its own namespace, in one store."""
    world = world_of(DSA)
    world.save(store)
    for party in world.parties(store, DSA.readers[0]):
        report = party.load()
        assert report.pages == DSA.pages
        assert party.holds({name: range(DSA.pages) for name in DSA.caches}) == []


def test_B61_one_evicted_chunk_is_seen_alike_by_all_who_ask_for_all(
    world: World, server: RedisServer, store: Store
) -> None:
    """Rank 2's chunk of page 3 of 6 goes. No key is a rank's own: who needs the chunk sees 3 pages,
    whatever its topology, and the catalog, which asks for all ranks, says 3 to all of them.
    """
    world.save(store, Topology(tp=4))
    keys = [entry.key for entry in store.list(world.pages[3])]
    assert len(keys) == CHUNKS
    assert len(set(keys)) == server.number("DBSIZE") // 6
    (lost,) = (key for key in keys if key.endswith("_L0-2_H2"))
    server.ask("DEL", f"unikv:{lost}")
    assert Catalog(store, world.namespace).match(world.pages).pages == 3
    for topology, seen in (
        (Topology(), [3]),
        (Topology(tp=2), [6, 3]),
        (Topology(tp=4), [6, 6, 3, 6]),
    ):
        loaded = world.load(store, topology)
        assert [report.pages for _, report in loaded] == seen
        assert all(world.holds(side, report.pages) for side, report in loaded)
    assert [report.stored for report in world.save(store, Topology(tp=4))] == [0, 0, 1, 0]
    assert Catalog(store, world.namespace).match(world.pages).pages == 6


def test_half_a_page_evicted_is_no_page(world: World, server: RedisServer, store: Store) -> None:
    """The server takes what it likes; what is left of a page stays and the rest is written anew."""
    world.save(store, Topology())
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    used = server.number_of("INFO", "memory", field="used_memory")
    server.ask("CONFIG", "SET", "maxmemory", used - 20_000)
    server.ask("SET", "something", "else")
    left = sum(1 for _ in store.list())
    server.ask("CONFIG", "SET", "maxmemory", 0)
    whole = [page for page in world.pages if _chunks(store, page) == CHUNKS]
    assert 0 < left < 6 * CHUNKS
    for side, report in world.load(store, Topology(tp=2)):
        assert report.pages <= 6
        assert world.holds(side, report.pages)
        assert all(page in whole for page in world.pages[: report.pages])
    world.save(store, Topology())
    for side, report in world.load(store, Topology(tp=2)):
        assert report.pages == 6
        assert world.holds(side, 6)


def test_full_in_the_middle_of_a_save(world: World, server: RedisServer, store: Store) -> None:
    """What had no room is told, what had is right, and later the rest follows."""
    used = server.number_of("INFO", "memory", field="used_memory")
    server.ask("CONFIG", "SET", "maxmemory", used + 40_000)
    (report,) = world.save(store, Topology())
    assert report.failed
    for side, loaded in world.load(store, Topology(tp=2)):
        assert loaded.pages < 6
        assert world.holds(side, loaded.pages)
    server.ask("CONFIG", "SET", "maxmemory", 0)
    (report,) = world.save(store, Topology())
    assert report.stored > 0
    assert not report.failed
    for side, loaded in world.load(store, Topology()):
        assert loaded.pages == 6
        assert world.holds(side, 6)


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_server_that_goes_away_under_loads_gives_no_wrong_byte(
    world: World, server: RedisServer, store: Store, fault: str
) -> None:
    """Loads end at whole pages or with none; afterwards the same clients work again."""
    world.save(store, Topology())
    sides = [world.side(store, rank, deadline_s=1) for rank in Topology(tp=2).ranks()]

    def load(index: int) -> int:
        side = sides[index]
        pages = 6
        for _ in range(8):
            pages = min(pages, side.client.load(world.pages, side.slots).pages)
        return pages

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(load, index) for index in range(2)]
        time.sleep(0.02)
        server.stop() if fault == "killed" else server.freeze()
        for future in running:
            assert 0 <= future.result() <= 6
    if fault == "killed":
        server.unix.unlink(missing_ok=True)
        server.start()
        world.save(store, Topology())
    else:
        server.thaw()
    deadline = time.monotonic() + 20  # who saw it away may leave it alone for a while
    for side in sides:
        while side.client.load(world.pages, side.slots).pages < 6:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert world.holds(side, 6)


def test_bytes_of_others_under_our_names_are_no_pages(
    world: World, server: RedisServer, store: Store
) -> None:
    """Right name, right size, wrong bytes: a miss, and the next save replaces them."""
    world.save(store, Topology())
    key = next(entry for entry in store.list() if world.pages[2] in entry.key)
    server.ask("SET", f"unikv:{key.key}", content("foreign", key.size))
    for side, report in world.load(store, Topology()):
        assert report.pages == 2
        assert world.holds(side, 2)
        side2 = world.side(store, Topology().rank(), filled=True)
        side2.client.load(world.pages, side2.slots)
        assert side2.client.save(world.pages, side2.slots).stored == 1
    assert [report.pages for _, report in world.load(store, Topology())] == [6]


def _chunks(store: Store, page: str) -> int:
    return sum(1 for _ in store.list(page))
