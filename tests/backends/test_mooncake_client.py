"""A client on Mooncake: what a store cannot promise there, tags and whole pages make good."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.world import World
from tests.servers.mooncake_cluster import MIB, MooncakeCluster, running
from tests.servers.mooncake_hooked import HookedNative, hooked_store
from unikv import KVSpec, Topology
from unikv.backends.mooncake import MooncakeStore
from unikv.registry import open_store
from unikv.store import Item, Outcome, Span
from unikv.testing import content, page_key, read

pytestmark = pytest.mark.mooncake
OK, EXISTED, MISS, FAILED = Outcome
SIZE = 300_000


def world() -> World:
    """Objects of some 40 kB: they do not travel with the master's answers."""
    spec = KVSpec.mha(layers=4, kv_heads=2, head_dim=32, dtype="int32", page_tokens=16)
    return World(spec, pages_count=6, options={"layers_per_chunk": 2})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MooncakeCluster]:
    """Provide a master whose leases last: a restart of it falls into one."""
    with running(tmp_path, size=16 * MIB, lease_ms=20_000) as cluster:
        yield cluster


class Usurper:
    """Another client, which fills the store anew once the master forgot what it held."""

    def __init__(self, cluster: MooncakeCluster) -> None:
        self.cluster = cluster
        store = open_store(cluster.url())
        assert isinstance(store, MooncakeStore)
        self.store = store

    def take_over(self) -> None:
        """Restart the master, empty, and fill the owner's memory with other bytes."""
        self.cluster.restart_master()
        native: Any = self.store._native
        with self.store._memory.borrow(MIB) as room:
            room.view[:MIB] = b"\x66" * MIB
            until = time.monotonic() + 15
            while native.batch_put_from(["usurper"], [room.address], [MIB]) != [0]:
                assert time.monotonic() < until  # its owner comes back within a second
                time.sleep(0.05)
            for size in (MIB, MIB // 64, 4096, 512):
                for i in range(2000):
                    key = f"usurper{size}_{i}"
                    if native.batch_put_from([key], [room.address], [size]) != [0]:
                        break


def test_a_restarted_master_gives_a_session_the_bytes_of_others(cluster: MooncakeCluster) -> None:
    """What happens, at the store: it says OK. A session asks the master once, and believes it.

    It takes a restart and a writer within the milliseconds of one call.
    """
    key = page_key("mine")
    usurper = Usurper(cluster)
    with hooked_store(cluster) as (store, hooked):
        assert store.put([Item(key, [content(key, SIZE)])]).ok
        hooked.before["batch_get_into_multi_buffer_ranges"] = usurper.take_over
        data = bytearray(SIZE)
        outcomes = store.get([Span(key, 0, SIZE, [memoryview(data)])])
        assert list(outcomes.codes) == [OK]
        assert data != content(key, SIZE)  # foreign bytes
        assert b"\x66" * 1000 in data
        settled = [read(store, key, 0, SIZE) for _ in range(2)]  # the next calls ask anew
        assert settled in ([MISS, MISS], [FAILED, MISS])  # a connection to the old one breaks first
    usurper.store.close()


def hooked_world(hooked: HookedNative, usurper: Usurper) -> None:
    hooked.before["batch_get_into_multi_buffer_ranges"] = usurper.take_over


def test_no_foreign_byte_of_a_restarted_master_reaches_a_pool(cluster: MooncakeCluster) -> None:
    """Tags are seeded with the object's key: bytes of another object fail by themselves."""
    usurper = Usurper(cluster)
    mine = world()
    with hooked_store(cluster) as (store, hooked):
        assert all(report.ok for report in mine.save(store, Topology()))
        side = mine.side(store, Topology().rank(), seed=3, siblings=False, deadline_s=60)
        hooked.calls.clear()
        hooked_world(hooked, usurper)
        report = side.client.load(mine.pages, side.slots)
        assert "batch_get_into_multi_buffer_ranges" not in hooked.before  # it came to pass
        assert report.pages == 0
        assert report.failed
        assert report.failed[0].kind == "damaged"
        assert mine.holds(side, 0)
        # And all is well again with the same client, once somebody stored it again.
        wiped: Any = usurper.store._native
        wiped.remove_all(True)  # noqa: FBT003 - by force
        other = mine.side(store, Topology().rank(), seed=4, filled=True)
        assert other.client.save(mine.pages, other.slots).ok
        assert side.client.load(mine.pages, side.slots).pages == 6
        assert mine.holds(side, 6)
    usurper.store.close()


@pytest.mark.parametrize("options", [{}, {"layers_per_chunk": 2, "heads_per_chunk": 1}])
def test_B61_all_ranks_find_the_same_pages_when_some_were_evicted(
    cluster: MooncakeCluster, options: dict[str, int]
) -> None:
    """Ranks share objects: one that is gone ends the prefix of every rank that it matters to."""
    mine = World(world().spec, pages_count=6, options=options)
    store = open_store(cluster.url(wait=0, admin=cluster.admin))
    assert all(report.ok for report in mine.save(store, Topology()))
    objects = [entry.key for entry in store.list(mine.pages[3])]
    assert len(objects) == (4 if options else 1)
    assert store.delete(objects if options else objects[:1]).ok  # fresh: nobody has a lease
    for topology in (Topology(tp=2), Topology(pp=2), Topology(tp=2, pp=2), Topology()):
        for side, report in mine.load(store, topology):
            assert report.pages == 3
            assert mine.holds(side, 3)
    store.close()


def test_pages_of_one_fleet_are_read_by_another(cluster: MooncakeCluster) -> None:
    mine = World(world().spec, pages_count=6, options={"layers_per_chunk": 2, "heads_per_chunk": 1})
    store = open_store(cluster.url())
    assert all(report.ok for report in mine.save(store, Topology(tp=2, pp=2)))
    for topology in (Topology(), Topology(tp=2), Topology(pp=2)):
        for side, report in mine.load(store, topology):
            assert report.pages == 6, report
            assert mine.holds(side, 6)
    store.close()
