"""A server that dies, freezes, forgets or is full: no wrong byte, an error that says retry, and
the same store works again."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers.redis_server import RedisServer, valkey_binary
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Outcomes, Span, Store
from unikv.testing import content, page_key

pytestmark = pytest.mark.redis

MIB = 1 << 20
TIMEOUT = 0.5
KEYS = [page_key(i) for i in range(48)]
OK, EXISTED, MISS, FAILED = range(4)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(valkey_binary(), tmp_path / "valkey") as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    store = open_store(f"{server.url}?timeout={TIMEOUT}&connect_timeout={TIMEOUT}")
    yield store
    store.close()


def put_all(store: Store, size: int = 200_000) -> Outcomes:
    return store.put([Item(key, [content(key, size)]) for key in KEYS])


def get_all(store: Store, size: int = 200_000) -> Outcomes:
    """Read all objects; see that every one that is OK holds its own bytes."""
    data = [bytearray(size) for _ in KEYS]
    spans = [Span(key, 0, size, [memoryview(d)]) for key, d in zip(KEYS, data, strict=True)]
    outcomes = store.get(spans)
    for key, code, found in zip(KEYS, outcomes.codes, data, strict=True):
        assert code != OK or found == content(key, size)
    return outcomes


def assert_passing(outcomes: Outcomes) -> None:
    """Every failed item has an error that says that it may pass, and holds no byte of a value."""
    assert outcomes.errors
    for position, error in outcomes.errors.items():
        assert error.retryable, error
        assert KEYS[position] in str(error)
    assert sorted(outcomes.errors) == [i for i, code in enumerate(outcomes.codes) if code == FAILED]


def works(store: Store) -> bool:
    """Tell whether everything can be stored and read."""
    return put_all(store).ok and get_all(store).ok


class TestKilled:
    def test_every_call_says_that_it_may_pass(self, server: RedisServer, store: Store) -> None:
        assert put_all(store).ok
        server.stop()
        for outcomes in (put_all(store), get_all(store), store.delete(KEYS)):
            assert list(outcomes.codes) == [FAILED] * len(KEYS)
            assert_passing(outcomes)
        with pytest.raises(StoreError, match="connect to") as away:
            store.stat(KEYS)  # a store that is away is not empty
        assert away.value.retryable
        with pytest.raises(StoreError, match="connect to") as caught:
            list(store.list())
        assert caught.value.retryable

    def test_started_again_it_is_empty_and_works_at_once(
        self, server: RedisServer, store: Store
    ) -> None:
        assert put_all(store).ok
        with ThreadPoolExecutor(6) as pool:  # many connections lie idle
            assert all(outcomes.ok for outcomes in pool.map(lambda _: get_all(store), range(12)))
        server.restart()
        assert list(get_all(store).codes) == [MISS] * len(KEYS)
        assert works(store)

    def test_in_the_middle_of_puts_and_gets(self, server: RedisServer, store: Store) -> None:
        assert put_all(store).ok
        seen: list[Outcomes] = []
        done = threading.Event()

        def work() -> None:
            while not done.is_set():
                seen.append(put_all(store))
                seen.append(get_all(store))
                store.delete(KEYS[::3])

        with ThreadPoolExecutor(4) as pool:
            workers = [pool.submit(work) for _ in range(4)]
            for _ in range(3):
                time.sleep(0.15)
                server.stop()
                time.sleep(0.05)
                server.unix.unlink(missing_ok=True)
                server.start()
            done.set()
            for worker in workers:
                worker.result()
        for outcomes in seen:
            assert outcomes.codes.count(FAILED) == len(outcomes.errors)
            assert all(error.retryable for error in outcomes.errors.values())
        assert any(outcomes.errors for outcomes in seen)
        assert works(store)


class TestFrozen:
    def test_B76_each_call_costs_one_timeout_and_then_it_works(
        self, server: RedisServer, store: Store
    ) -> None:
        """A hundred lookups against a server that is stopped, then hits without a new store."""
        assert put_all(store).ok
        server.freeze()
        try:
            began = time.monotonic()
            for call in (get_all, put_all):
                assert_passing(call(store))
            with pytest.raises(StoreError):
                store.stat(KEYS * 2)
            took = time.monotonic() - began
        finally:
            server.thaw()
        assert 3 * TIMEOUT * 0.8 < took < 3 * (TIMEOUT + 0.4)
        assert get_all(store).ok
        assert works(store)

    def test_in_the_middle_of_a_reply_no_byte_goes_astray(
        self, server: RedisServer, store: Store
    ) -> None:
        """The rest of a reply that was given up comes late: nobody may take it for his own."""
        size = MIB
        assert put_all(store, size).ok
        for wait in (0.003, 0.006, 0.01, 0.015):
            with ThreadPoolExecutor(2) as pool:
                running = [pool.submit(get_all, store, size) for _ in range(2)]
                time.sleep(wait)
                server.freeze()
                time.sleep(TIMEOUT + 0.1)
                outcomes = [future.result() for future in running]
                server.thaw()
            for each in outcomes:
                if each.errors:
                    assert_passing(each)
            assert get_all(store, size).ok

    def test_a_frozen_server_is_no_server_at_open(self, server: RedisServer) -> None:
        server.freeze()
        began = time.monotonic()
        try:
            with pytest.raises(StoreError, match=r"no answer within 0\.3 s") as caught:
                open_store(f"{server.url}?connect_timeout=0.3")
        finally:
            server.thaw()
        assert caught.value.retryable
        assert time.monotonic() - began < 1


class TestFull:
    def test_what_has_no_room_fails_and_reads_go_on(
        self, server: RedisServer, store: Store
    ) -> None:
        secret = b"VALUE" * 40_000
        items = [Item(key, [secret]) for key in KEYS]
        assert store.put(items[:8]).ok
        used = server.number_of("INFO", "memory", field="used_memory")
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.ask("CONFIG", "SET", "maxmemory", used + 3 * len(secret))
        outcomes = store.put(items)
        assert list(outcomes.codes[:8]) == [EXISTED] * 8
        assert {OK, FAILED} <= set(outcomes.codes[8:]) <= {OK, FAILED}
        for error in outcomes.errors.values():
            assert "the server is full" in str(error)
            assert "VALUE" not in str(error)
            assert not error.retryable  # until somebody makes room
        for code, key in zip(outcomes.codes, KEYS, strict=True):
            assert store.stat([key])[0] == (None if code == FAILED else len(secret))
        server.ask("CONFIG", "SET", "maxmemory", 0)
        assert list(store.put(items).codes) == [
            OK if code == FAILED else EXISTED for code in outcomes.codes
        ]

    def test_B61_evicted_between_stat_and_get_is_a_miss(
        self, server: RedisServer, store: Store
    ) -> None:
        """With allkeys-lru objects go without a word: stat and get agree, each on its own time."""
        size = MIB - 64
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        server.ask("CONFIG", "SET", "maxmemory", 24 * MIB)
        assert put_all(store, size).ok
        there = [found is not None for found in store.stat(KEYS)]
        assert 4 < sum(there) < len(KEYS)
        other = [Item(page_key(f"other {i}"), [bytes(size)]) for i in range(12)]
        assert store.put(other).ok
        outcomes = get_all(store, size)
        assert not outcomes.errors
        codes = outcomes.codes
        assert 0 < codes.count(OK) < sum(there)
        assert all(was or code == MISS for was, code in zip(there, codes, strict=True))
        server.ask("CONFIG", "SET", "maxmemory", 0)
        put = put_all(store, size)  # half a page went: the rest of it is there, and stays
        assert list(put.codes) == [EXISTED if code == OK else OK for code in codes]
        assert get_all(store, size).ok


def test_a_replica_takes_no_writes_and_may_not_stay_one(
    server: RedisServer, store: Store, tmp_path: Path
) -> None:
    assert put_all(store).ok
    with RedisServer(valkey_binary(), tmp_path / "master") as master:
        server.ask("REPLICAOF", "127.0.0.1", master.port)
        outcomes = store.put([Item("new", [b"x"])])
        assert "is a replica" in str(outcomes.errors[0])
        assert outcomes.errors[0].retryable
        server.ask("REPLICAOF", "NO", "ONE")
    assert works(store)


def test_all_connections_in_use_is_said(server: RedisServer) -> None:
    store = open_store(f"{server.url}?timeout=0.3&connect_timeout=0.3&connections=1")
    assert put_all(store).ok
    server.freeze()
    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda _: get_all(store), range(2)))
    finally:
        server.thaw()
    texts = [str(outcomes.errors[0]) for outcomes in found]
    assert any("no answer within 0.3 s" in text for text in texts)
    assert get_all(store).ok
    store.close()
