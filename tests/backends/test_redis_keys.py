"""How objects lie in Redis: one string each, under names that say whose they are, not held dear."""

import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.redis_server import RedisServer, valkey_binary
from unikv.backends.redis import RedisStore
from unikv.registry import open_store
from unikv.store import Item, Outcome, Span, Store
from unikv.testing import content, page_key, read

pytestmark = pytest.mark.redis

MIB = 1 << 20


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(valkey_binary(), tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def server(lasting: RedisServer) -> RedisServer:
    lasting.ask("FLUSHALL")
    return lasting


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    store = open_store(server.url)
    yield store
    store.close()


def test_B62_an_object_is_one_string(server: RedisServer, store: Store) -> None:
    """No second key that could be evicted by itself: what is lost is a miss in every call."""
    items = [Item(page_key(i, "_H0"), [b"head", content("x", 1000), b"tail"]) for i in range(5)]
    assert store.put(items).ok
    assert server.number("DBSIZE") == 5
    name = f"unikv:{items[2].key}"
    assert server.ask("TYPE", name) == b"+string\r\n"
    assert server.number("STRLEN", name) == 1008
    server.ask("DEL", name)
    assert store.stat([items[2].key]) == [None]
    assert read(store, items[2].key, 0, 1008) == Outcome.MISS
    assert server.number("DBSIZE") == 4


def test_names_bear_the_prefix_of_the_url(server: RedisServer) -> None:
    first, second = (open_store(f"{server.url}?prefix={prefix}") for prefix in ("a:", "a:b:"))
    assert first.put([Item("key", [b"first"])]).ok
    assert second.put([Item("key", [b"second"])]).ok
    assert server.number("STRLEN", "a:key") == 5
    assert server.number("STRLEN", "a:b:key") == 6
    assert [entry.key for entry in first.list()] == ["key"]  # b:key is no key of a store
    assert first.delete(["key"]).ok
    assert second.stat(["key"]) == [6]
    first.close()
    second.close()


def test_databases_are_apart(server: RedisServer) -> None:
    zero, five = (open_store(f"redis://127.0.0.1:{server.port}/{db}") for db in (0, 5))
    assert zero.put([Item("key", [b"zero"])]).ok
    assert five.stat(["key"]) == [None]
    assert list(five.list()) == []
    zero.close()
    five.close()


def test_keys_of_others_are_neither_listed_nor_touched(server: RedisServer, store: Store) -> None:
    server.ask("SET", "session:1", "x")
    server.ask("SET", "unikv:no key of ours", "x")
    server.ask("SET", b"unikv:\xff", "x")
    server.ask("RPUSH", "unikv:list", "x")
    assert store.put([Item("key", [b"x"])]).ok
    assert [(entry.key, entry.size, entry.mtime) for entry in store.list()] == [("key", 1, None)]
    assert store.delete(["session", "key"]).codes == [Outcome.MISS, Outcome.OK]
    assert server.number("DBSIZE") == 4


def test_something_else_under_our_name_is_no_object(server: RedisServer, store: Store) -> None:
    """It cannot be told, is not read, is replaced and is removed: by every call but in its way."""
    server.ask("RPUSH", "unikv:key", "not", "a", "string")
    assert store.stat(["key"]) == [None]
    outcomes = store.get([Span("key", 0, 3, [memoryview(bytearray(3))])])
    assert "the key holds no string (WRONGTYPE)" in str(outcomes.errors[0])
    assert not outcomes.errors[0].retryable
    assert list(store.put([Item("key", [b"meant"])]).codes) == [Outcome.OK]
    assert read(store, "key", 0, 5) == b"meant"
    server.ask("DEL", "unikv:key")
    server.ask("RPUSH", "unikv:key", "again")
    assert store.delete(["key"]).ok


def test_a_time_to_live_starts_when_the_object_is_stored(server: RedisServer) -> None:
    store = open_store(f"{server.url}?ttl=100")
    assert store.put([Item("key", [b"x"])]).ok
    assert server.number("TTL", "unikv:key") in (99, 100)
    server.ask("EXPIRE", "unikv:key", 7)
    assert list(store.put([Item("key", [b"x"])]).codes) == [Outcome.EXISTED]
    assert server.number("TTL", "unikv:key") <= 7
    assert store.put([Item("key", [b"y"])], replace=True).ok
    assert server.number("TTL", "unikv:key") in (99, 100)
    assert store.put([Item("key", [b"longer"])]).ok
    assert server.number("TTL", "unikv:key") in (99, 100)
    store.close()


def test_an_object_may_expire(server: RedisServer) -> None:
    store = open_store(f"{server.url}?ttl=1")
    assert store.put([Item("key", [b"x"])]).ok
    time.sleep(1.1)
    assert read(store, "key", 0, 1) == Outcome.MISS
    assert store.stat(["key"]) == [None]
    assert list(store.put([Item("key", [b"x"])]).codes) == [Outcome.OK]
    store.close()


def test_what_is_larger_than_a_string_can_be_is_refused_here(store: Store) -> None:
    """The server would close the connection without a word."""
    block = memoryview(bytes(MIB))
    items = [Item("large", [block] * 513), Item("small", [b"x"])]
    outcomes = store.put(items)
    assert list(outcomes.codes) == [Outcome.FAILED, Outcome.OK]
    assert "537919488 bytes: a string of Redis holds 536870912 at most" in str(outcomes.errors[0])
    assert not outcomes.errors[0].retryable
    assert store.stat(["large"]) == [None]


@pytest.mark.parametrize("stop", [2**29 + 1, 2**40, 2**63, 2**70])
def test_a_range_behind_what_a_string_can_be_is_one_behind_the_end(store: Store, stop: int) -> None:
    store.put([Item("key", [b"x"])])
    views = [memoryview(bytearray(1))]
    outcomes = store.get([Span(key, stop - 1, stop, views) for key in ("key", "gone")])
    assert list(outcomes.codes) == [Outcome.FAILED, Outcome.MISS]
    assert "the object has 1 bytes" in str(outcomes.errors[0])


def test_neither_put_nor_get_holds_a_copy(store: Store) -> None:
    """Bytes go from the caller's buffers to the socket and from there into the caller's memory."""
    source = [memoryview(content(str(i), 8 * MIB)) for i in range(4)]
    target = [memoryview(bytearray(8 * MIB)) for _ in source]
    items = [Item(f"k{i}", [b"head", data, b"tail"]) for i, data in enumerate(source)]
    spans = [Span(f"k{i}", 4, 4 + 8 * MIB, [data]) for i, data in enumerate(target)]
    store.put([Item("warm", [b""])])
    tracemalloc.start()
    try:
        assert store.put(items).ok
        assert store.get(spans).ok
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert target == source
    assert peak < MIB // 2


def test_a_large_read_leaves_little_in_the_server(server: RedisServer, store: Store) -> None:
    """A pipeline of all ranges at once would be held there whole: normal clients have no limit."""
    keys = [page_key(i) for i in range(24)]
    assert store.put([Item(key, [bytes(MIB)]) for key in keys]).ok
    server.ask("CONFIG", "RESETSTAT")
    before = server.number_of("INFO", "memory", field="used_memory")
    spans = [
        Span(key, at, at + 65536, [memoryview(bytearray(65536))])
        for key in keys
        for at in range(0, MIB, 65536)
    ]
    server.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 6mb 0 0")
    try:
        assert store.get(spans).ok  # a client that held more would have been cut off
    finally:
        server.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0")
    assert server.number_of("INFO", "memory", field="used_memory") < before + 8 * MIB


def test_B87_stat_does_not_count_as_use(server: RedisServer, store: Store) -> None:
    """Asking what is there must not keep it there: the server counts reads and saves alone."""
    server.ask("CONFIG", "SET", "lfu-log-factor", 0)
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    keys = [page_key(i) for i in range(3)]
    try:
        assert store.put([Item(key, [b"12345"]) for key in keys]).ok

        def used() -> int:
            return server.number("OBJECT", "FREQ", f"unikv:{keys[0]}")

        at_first = used()
        for _ in range(5):
            assert list(store.stat(keys)) == [5, 5, 5]
            assert len(list(store.list())) == 3
        assert used() == at_first
        assert read(store, keys[0], 0, 5) == b"12345"
        assert used() == at_first + 1
        assert store.put([Item(keys[0], [b"12345"])]).codes == [Outcome.EXISTED]
        assert used() == at_first + 2
    finally:
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_many_objects_are_listed_once_each(store: Store) -> None:
    """More than one step of a scan, while the table shrinks under it."""
    keys = [page_key(i) for i in range(6000)]
    assert store.put([Item(key, [b"x"]) for key in keys]).ok
    assert sorted(entry.key for entry in store.list()) == sorted(keys)
    stream = store.list()
    seen = [next(stream).key for _ in range(1500)]
    assert store.delete([key for key in keys if key not in seen][:-50]).ok
    seen += [entry.key for entry in stream]
    assert len(seen) == len(set(seen))
    assert len(seen) >= 1550


def test_the_opener_opens_the_same_store_elsewhere(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "kv", "on", ">p?s#w:d@", "+@all", "~*", "&*")
    store = open_store(f"redis://kv:p%3Fs%23w%3Ad%40@127.0.0.1:{server.port}/2?prefix=x:&ttl=9")
    store.put([Item("key", [b"there"])])
    assert isinstance(store, RedisStore)
    opener = store.opener
    code = (
        "import importlib, json, sys; module, function, arguments = json.load(sys.stdin)\n"
        "store = getattr(importlib.import_module(module), function)(*arguments)\n"
        "print(store.stat(['key']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(opener),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "[5]\n"
    assert "p?s#w" not in repr(opener) + repr(store)
    store.close()


def test_the_store_knows_its_place(server: RedisServer, store: Store) -> None:
    assert repr(store) == f"RedisStore('redis://127.0.0.1:{server.port}/0')"
    by_socket = open_store(f"unix://{server.unix}")
    assert repr(by_socket) == f"RedisStore('unix://{server.unix}?db=0')"
    by_socket.close()
    assert Path(server.unix).exists()
