"""A cluster whose slots move and whose nodes die: the store follows, and other keys go on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer, valkey_binary
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Outcome, Span, Store
from unikv.testing import content, page_key

pytestmark = pytest.mark.redis

KEYS = [page_key(i) for i in range(60)]
SIZE = 50_000


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(valkey_binary(), tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(lasting: RedisCluster) -> RedisCluster:
    """The module's cluster, empty; whoever ends or moves something waits until it is whole."""
    for node in lasting.nodes:
        node.ask("FLUSHALL")
    lasting.wait()
    return lasting


@pytest.fixture
def store(cluster: RedisCluster) -> Iterator[Store]:
    store = open_store(f"{cluster.url}&timeout=0.5&connect_timeout=0.5")
    yield store
    store.close()


def put_all(store: Store) -> list[Outcome]:
    return list(store.put([Item(key, [content(key, SIZE)]) for key in KEYS]).codes)


def get_all(store: Store) -> list[Outcome]:
    """Read all objects; see that every one that is OK holds its own bytes."""
    data = [bytearray(SIZE) for _ in KEYS]
    spans = [Span(key, 0, SIZE, [memoryview(d)]) for key, d in zip(KEYS, data, strict=True)]
    outcomes = store.get(spans)
    for key, code, found in zip(KEYS, outcomes.codes, data, strict=True):
        assert code is not Outcome.OK or found == content(key, SIZE)
    assert all(error.retryable for error in outcomes.errors.values())
    return list(outcomes.codes)


def slot_of(key: str) -> int:
    return key_slot(f"unikv:{key}".encode())


def test_the_objects_of_a_page_lie_on_all_nodes(cluster: RedisCluster, store: Store) -> None:
    """Nothing ties the keys of one page, or of one namespace, to one node."""
    page = [page_key(7, f"_H{head}") for head in range(40)]
    assert store.put([Item(key, [b"x" * 100]) for key in page]).ok
    held = [node.number("DBSIZE") for node in cluster.nodes]
    assert sum(held) == 40
    assert min(held) > 3
    assert sorted(entry.key for entry in store.list()) == sorted(page)


def test_a_moved_slot_is_followed(cluster: RedisCluster, store: Store) -> None:
    """MOVED: the slots that a client knows are old ones."""
    assert put_all(store) == [Outcome.OK] * len(KEYS)
    for key in KEYS[:6]:
        slot = slot_of(key)
        source = cluster.owner(slot)
        goal = next(node for node in cluster.nodes if node is not source)
        cluster.begin_move(slot, goal)
        source.ask("MIGRATE", "127.0.0.1", goal.port, f"unikv:{key}", 0, 5000)
        cluster.end_move(slot, goal)
    assert get_all(store) == [Outcome.OK] * len(KEYS)
    assert list(store.stat(KEYS)) == [SIZE] * len(KEYS)
    assert list(store.delete(KEYS).codes) == [Outcome.OK] * len(KEYS)
    assert put_all(store) == [Outcome.OK] * len(KEYS)


def test_a_slot_on_the_move_is_asked_for_at_both_ends(cluster: RedisCluster, store: Store) -> None:
    """ASK: what has moved is there, what has not is here, and what is new goes there."""
    assert put_all(store) == [Outcome.OK] * len(KEYS)
    here, there = KEYS[0], KEYS[1]
    moves = []
    for key in (here, there):
        slot = slot_of(key)
        source = cluster.owner(slot)
        goal = next(node for node in cluster.nodes if node is not source)
        cluster.begin_move(slot, goal)
        moves.append((slot, goal))
        if key == there:
            source.ask("MIGRATE", "127.0.0.1", goal.port, f"unikv:{key}", 0, 5000)
    for _ in range(2):
        assert get_all(store) == [Outcome.OK] * len(KEYS)
    assert list(store.stat([here, there])) == [SIZE, SIZE]
    assert list(store.delete([there, there]).codes) == [Outcome.OK, Outcome.MISS]
    assert list(store.put([Item(there, [b"new", b"one"])]).codes) == [Outcome.OK]
    assert list(store.put([Item(there, [b"newone"])]).codes) == [Outcome.EXISTED]
    assert list(store.stat([there])) == [6]
    for slot, goal in moves:
        cluster.end_move(slot, goal)
    assert list(store.stat([there])) == [6]


def test_a_dead_node_costs_its_own_keys_alone(cluster: RedisCluster, store: Store) -> None:
    """The others' are read and stored, and its own too once it is back, without a new store."""
    assert put_all(store) == [Outcome.OK] * len(KEYS)
    dead = cluster.nodes[0]  # the one of the URL
    lost = [cluster.owner(slot_of(key)) is dead for key in KEYS]
    dead.stop()
    began = time.monotonic()
    codes = get_all(store)
    assert time.monotonic() - began < 2
    assert codes == [Outcome.FAILED if gone else Outcome.OK for gone in lost]
    dead.unix.unlink(missing_ok=True)
    dead.start()
    cluster.wait()
    assert get_all(store) == [Outcome.MISS if gone else Outcome.OK for gone in lost]
    assert put_all(store) == [Outcome.OK if gone else Outcome.EXISTED for gone in lost]


def test_a_frozen_node_costs_one_timeout_and_the_others_nothing(
    cluster: RedisCluster, store: Store
) -> None:
    assert put_all(store) == [Outcome.OK] * len(KEYS)
    frozen = cluster.nodes[1]
    lost = [cluster.owner(slot_of(key)) is frozen for key in KEYS]
    frozen.freeze()
    try:
        began = time.monotonic()
        codes = get_all(store)
        took = time.monotonic() - began
    finally:
        frozen.thaw()
    assert 0.4 < took < 1.2
    assert codes == [Outcome.FAILED if gone else Outcome.OK for gone in lost]
    cluster.wait()
    assert get_all(store) == [Outcome.OK] * len(KEYS)


def test_a_cluster_is_no_server(cluster: RedisCluster) -> None:
    """Without cluster=1 only the keys of one node are found: the error says what is missing."""
    store = open_store(cluster.url.partition("?")[0])
    outcomes = store.put([Item(key, [b"x"]) for key in KEYS])
    assert {Outcome.OK, Outcome.FAILED} == set(outcomes.codes)
    for error in outcomes.errors.values():
        assert "add cluster=1 to the URL" in str(error)
        assert not error.retryable
    store.close()


def test_a_server_is_no_cluster(tmp_path: Path) -> None:
    with (
        RedisServer(valkey_binary(), tmp_path / "alone") as alone,
        pytest.raises(StoreError, match="cluster support disabled") as caught,
    ):
        open_store(f"{alone.url}?cluster=1")
    assert not caught.value.retryable


def test_a_cluster_without_a_node_for_a_slot_says_so(cluster: RedisCluster, store: Store) -> None:
    assert put_all(store) == [Outcome.OK] * len(KEYS)
    slot = slot_of(KEYS[0])
    owner = cluster.owner(slot)
    for node in cluster.nodes:
        node.ask("CLUSTER", "DELSLOTS", slot)
    fresh = open_store(cluster.url)
    data = bytearray(SIZE)
    outcomes = fresh.get([Span(KEYS[0], 0, SIZE, [memoryview(data)])])
    assert outcomes.codes[0] is Outcome.FAILED
    assert "slot" in str(outcomes.errors[0])
    assert outcomes.errors[0].retryable
    fresh.close()
    owner.ask("CLUSTER", "ADDSLOTS", slot)
