"""MooncakeStore while master or owner are killed, frozen, restarted empty: in time, then well."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers.mooncake_cluster import (
    MIB,
    MooncakeCluster,
    free_port,
    freeze,
    require_mooncake,
    running,
    thaw,
)
from tests.servers.mooncake_hooked import hooked_store
from unikv.backends import mooncake_pace
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Outcome, Outcomes, Span, Store
from unikv.testing import content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome
pytestmark = [pytest.mark.mooncake, pytest.mark.slow]
SIZE = 100_000
TIMEOUT_S = 2
STALL_S = 1  # of an owner
KEYS = [page_key(i) for i in range(4)]
NEW = page_key("new")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store sets for its process is set for one test."""
    for name in ("MC_RPC_TIMEOUT_MS", "MC_TCP_STATUS_TIMEOUT_SEC", "MC_TCP_PROGRESS_TIMEOUT_SEC"):
        monkeypatch.setenv(name, str(TIMEOUT_S))
        monkeypatch.delenv(name)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MooncakeCluster]:
    with running(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def store(cluster: MooncakeCluster) -> Iterator[Store]:
    store = open_store(cluster.url(timeout=TIMEOUT_S, wait=1))
    assert store.put([Item(key, [content(key, SIZE)]) for key in KEYS]).ok
    yield store
    store.close()


def timed(call: Callable[[], Outcomes]) -> tuple[Outcomes, float]:
    begun = time.monotonic()
    return call(), time.monotonic() - begun


def get_all(store: Store) -> Outcomes:
    return store.get([Span(key, 0, SIZE, [memoryview(bytearray(SIZE))]) for key in KEYS])


def all_failed(outcomes: Outcomes) -> None:
    assert set(outcomes.codes) == {FAILED}
    assert all(error.retryable for error in outcomes.errors.values())


def settles(call: Callable[[], bool], seconds: float = 30) -> None:
    """Try until it holds: what the cluster needs to be well again."""
    until = time.monotonic() + seconds
    while not call():
        assert time.monotonic() < until
        time.sleep(0.1)


def every_call_fails_within(store: Store, seconds: float) -> None:
    calls: list[Callable[[], Outcomes]] = [
        lambda: get_all(store),
        lambda: store.put([Item(NEW, [content(NEW, SIZE)])]),
        lambda: store.put([Item(KEYS[0], [b"other"])], replace=True),
        lambda: store.delete(KEYS),
    ]
    for call in calls:
        outcomes, took = timed(call)
        all_failed(outcomes)
        assert took < seconds
    begun = time.monotonic()
    with pytest.raises(StoreError) as caught:
        store.stat(KEYS)
    assert caught.value.retryable
    assert time.monotonic() - begun < 2 * seconds  # asked twice: nothing and no answer look alike


def test_a_killed_master_fails_every_call_in_time_and_an_empty_one_works_at_once(
    cluster: MooncakeCluster, store: Store
) -> None:
    cluster.kill_master()
    every_call_fails_within(store, 6)
    cluster.start_master()
    assert list(get_all(store).codes) == [MISS] * 4
    assert list(store.stat(KEYS)) == [None] * 4
    settles(lambda: store.put([Item(NEW, [content(NEW, SIZE)])]).ok)  # its owner comes back
    assert read(store, NEW, 0, SIZE) == content(NEW, SIZE)


def test_a_frozen_master_fails_every_call_in_time_and_holds_nobody_else(
    cluster: MooncakeCluster, store: Store
) -> None:
    assert cluster.master is not None
    freeze(cluster.master)
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.01):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.monotonic()
    every_call_fails_within(store, TIMEOUT_S + 1)
    took = time.monotonic() - begun
    done.set()
    thread.join()
    assert ticks > 50 * took * 0.5  # of a hundred a second, on a busy machine
    thaw(cluster.master)
    # It may have missed its owner so long that it drops it, and what it held; then takes it back.
    settles(lambda: store.put([Item(key, [content(key, SIZE)]) for key in [*KEYS, NEW]]).ok)
    settles(lambda: get_all(store).ok)


@pytest.mark.parametrize("fault", ["kill_master", "restart_master"])
def test_a_master_that_dies_amid_a_put_does_not_bar_its_keys(
    cluster: MooncakeCluster, fault: str
) -> None:
    """The library keeps the unfinished session: a second put of the key would fail for ever."""
    with hooked_store(cluster, timeout=TIMEOUT_S, wait=1) as (store, hooked):
        hooked.before["batch_put_session_end"] = getattr(cluster, fault)
        outcomes = store.put([Item(KEYS[0], [content(KEYS[0], SIZE)])])
        all_failed(outcomes)
        if fault == "kill_master":
            cluster.start_master()
        settles(lambda: store.put([Item(KEYS[0], [content(KEYS[0], SIZE)])]).ok)
        assert read(store, KEYS[0], 0, SIZE) == content(KEYS[0], SIZE)


def test_a_killed_owner_fails_reads_at_once_then_misses_and_another_takes_over(
    cluster: MooncakeCluster, store: Store
) -> None:
    cluster.kill_owner(cluster.owners[0])
    outcomes, took = timed(lambda: get_all(store))
    all_failed(outcomes)
    assert took < TIMEOUT_S + 1
    outcomes, took = timed(lambda: store.put([Item(NEW, [content(NEW, SIZE)])]))
    all_failed(outcomes)
    assert took < TIMEOUT_S + 2
    assert list(store.stat([NEW])) == [None]
    settles(lambda: set(get_all(store).codes) == {MISS})  # the master noticed: --client_ttl
    cluster.start_owner()
    assert store.put([Item(key, [content(key, SIZE)]) for key in [*KEYS, NEW]]).ok
    assert get_all(store).ok


def test_a_frozen_owner_fails_reads_and_writes_in_time(
    cluster: MooncakeCluster, store: Store
) -> None:
    """Well again as soon as it runs, and what it received late is in no object."""
    owner = cluster.owners[0]
    freeze(owner)
    outcomes, took = timed(lambda: get_all(store))
    all_failed(outcomes)
    assert took < 4 * STALL_S + 1
    outcomes, took = timed(lambda: store.put([Item(NEW, [content(NEW, SIZE)])]))
    all_failed(outcomes)
    assert took < STALL_S + 2
    thaw(owner)
    settles(lambda: store.put([Item(key, [content(key, SIZE)]) for key in [*KEYS, NEW]]).ok)
    settles(lambda: get_all(store).ok)
    for key in [*KEYS, NEW]:
        assert read(store, key, 0, SIZE) == content(key, SIZE)


def test_one_frozen_owner_of_two_holds_up_neither_the_others_objects_nor_the_call(
    cluster: MooncakeCluster, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library waits for every range that a frozen owner has, one after the other."""
    monkeypatch.setattr(mooncake_pace, "FIRST_RANGES", 4)
    monkeypatch.setattr(mooncake_pace, "MOST_RANGES", 4)
    cluster.start_owner()
    keys = [page_key(("two", i)) for i in range(60)]
    assert store.put([Item(key, [content(key, SIZE)]) for key in keys]).ok
    freeze(cluster.owners[1])
    out = [bytearray(SIZE) for _ in keys]
    spans = [Span(key, 0, SIZE, [memoryview(o)]) for key, o in zip(keys, out, strict=True)]
    outcomes, took = timed(lambda: store.get(spans))
    assert took < 4 * STALL_S + 1
    assert 10 < outcomes.codes.count(FAILED) < 50
    for key, code, found in zip(keys, outcomes.codes, out, strict=True):
        assert code in (OK, FAILED)
        assert code == FAILED or found == content(key, SIZE)
    items = [Item(f"{key}_", [content(key, SIZE)]) for key in keys]
    outcomes, took = timed(lambda: store.put(items))
    assert took < 4 * STALL_S + 3
    assert FAILED in outcomes.codes
    outcomes, took = timed(lambda: store.put(items, replace=True))
    assert took < 16 * STALL_S + 6
    thaw(cluster.owners[1])
    settles(lambda: store.put(items).ok, 30)
    settles(lambda: store.get(spans).ok or MISS in store.get(spans).codes)


@pytest.mark.parametrize("way", ["get", "put"])
def test_an_owner_that_freezes_amid_a_transfer_holds_nobody_for_ever(
    cluster: MooncakeCluster, store: Store, way: str
) -> None:
    """The library's own limit is on the start of an answer alone."""
    size = 48 * MIB
    big = memoryview(bytearray(size))
    ends: list[Outcomes] = []
    if way == "get":
        assert store.put([Item("big", [big])]).ok

    def work() -> None:
        while not ends:
            if way == "get":
                outcomes = store.get([Span("big", 0, size, [big])])
            else:
                outcomes = store.put([Item("big", [big])], replace=True)
            if not outcomes.ok:
                ends.append(outcomes)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.3)
    owner = cluster.owners[0]
    freeze(owner)
    thread.join(8 * TIMEOUT_S)
    thaw(owner)
    assert not thread.is_alive()
    all_failed(ends[0])


def test_no_master_is_an_error_at_once() -> None:
    require_mooncake()
    port = free_port()
    begun = time.monotonic()
    with pytest.raises(StoreError, match=rf"no Mooncake master at 127.0.0.1:{port}") as caught:
        open_store(f"mooncake://127.0.0.1:{port}")
    assert time.monotonic() - begun < 2
    assert caught.value.retryable


def test_a_master_that_does_not_answer_is_an_error_in_time() -> None:
    """The library would try for minutes."""
    require_mooncake()
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen(50)
        port = mute.getsockname()[1]
        begun = time.monotonic()
        with pytest.raises(StoreError, match="set-up fails") as caught:
            open_store(f"mooncake://127.0.0.1:{port}?timeout={TIMEOUT_S}&metadata=P2PHANDSHAKE")
        assert time.monotonic() - begun < TIMEOUT_S + 2
        assert caught.value.retryable


def test_metadata_that_cannot_be_had_is_an_error(cluster: MooncakeCluster) -> None:
    url = cluster.url(metadata="http://127.0.0.1:1/metadata")
    with pytest.raises(StoreError, match=r"metadata=http://127.0.0.1:1/metadata"):
        open_store(url)


def test_memory_that_this_machine_has_not_is_an_error(cluster: MooncakeCluster) -> None:
    with pytest.raises(StoreError, match="segment=219902325555200"):
        open_store(cluster.url(segment="200TiB"))


def test_a_process_may_lend_memory_and_takes_it_along(cluster: MooncakeCluster) -> None:
    cluster.kill_owner(cluster.owners[0])
    lender = open_store(cluster.url(segment="32MiB", timeout=TIMEOUT_S))
    reader = open_store(cluster.url(timeout=TIMEOUT_S))
    settles(lambda: lender.put([Item(KEYS[0], [content(KEYS[0], SIZE)])]).ok)
    for store in (lender, reader):
        assert read(store, KEYS[0], 0, SIZE) == content(KEYS[0], SIZE)
    lender.close()
    settles(lambda: read(reader, KEYS[0], 0, SIZE) == MISS)
    with suppress(StoreError):
        reader.delete(KEYS)
    reader.close()
