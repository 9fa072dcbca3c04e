"""MooncakeStore says "stored" of what it stored, alone, and waits a little for what may pass."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest

from tests.servers.mooncake_cluster import MIB, MooncakeCluster, running, wipe
from tests.servers.mooncake_fake import FakeNative, fake_store
from unikv.backends.mooncake import MooncakeStore
from unikv.backends.mooncake_marks import EMPTY, REPLACED
from unikv.registry import open_store
from unikv.store import Item, Outcome, Span, Store
from unikv.testing import content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome
SIZE = 100_000
served = pytest.mark.mooncake


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeCluster]:
    with running(tmp_path_factory.mktemp("mooncake"), size=32 * MIB) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def opened(cluster: MooncakeCluster) -> Iterator[tuple[MooncakeStore, MooncakeStore]]:
    stores = open_store(cluster.url(wait=1)), open_store(cluster.url(wait=1))
    assert isinstance(stores[0], MooncakeStore)
    assert isinstance(stores[1], MooncakeStore)
    yield stores[0], stores[1]
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: tuple[MooncakeStore, MooncakeStore]) -> MooncakeStore:
    wipe(opened[0])
    return opened[0]


@pytest.fixture
def other(opened: tuple[MooncakeStore, MooncakeStore]) -> Any:
    """Another client of the cluster, bare."""
    return opened[1]._native


@pytest.fixture
def room(opened: tuple[MooncakeStore, MooncakeStore]) -> Iterator[int]:
    """Registered memory of the other client."""
    with opened[1]._memory.borrow(MIB) as room:
        yield room.address


# Somebody else writes the same key


@served
def test_the_librarys_plain_put_says_stored_of_what_it_did_not_store(
    store: MooncakeStore, other: Any
) -> None:
    """The trap that sessions avoid: a newer library may have mended it."""
    key = page_key("trap")
    assert other.batch_put_session_start([key], [SIZE]) == [0]
    native: Any = store._native
    with store._memory.borrow(SIZE) as mine:
        assert native.batch_put_from([key], [mine.address], [SIZE]) == [0]
    assert list(store.stat([key])) == [None]
    other.batch_put_session_revoke([key])


@served
def test_put_waits_for_another_writer_and_finds_its_object(
    store: MooncakeStore, other: Any, room: int
) -> None:
    key = page_key("slow")
    assert other.batch_put_session_start([key], [SIZE]) == [0]
    assert other.batch_put_from_multi_buffer_ranges([key], [[room]], [[SIZE]], [[0]]) == [SIZE]
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(store.put, [Item(key, [content(key, SIZE)])])
        time.sleep(0.3)
        assert not put.done()
        assert other.batch_put_session_end([key]) == [0]
        assert list(put.result().codes) == [EXISTED]


@served
def test_put_takes_over_from_a_writer_that_never_ends(
    store: MooncakeStore, other: Any, room: int
) -> None:
    keys = [page_key(i) for i in range(3)]
    assert other.batch_put_session_start([keys[1]], [SIZE]) == [0]
    begun = time.monotonic()
    outcomes = store.put([Item(key, [content(key, SIZE)]) for key in keys])
    assert list(outcomes.codes) == [OK] * 3
    assert 0.9 < time.monotonic() - begun < 3
    assert [read(store, key, 0, SIZE) for key in keys] == [content(key, SIZE) for key in keys]
    # Who was too slow stores nothing, and learns of it.
    other.batch_put_from_multi_buffer_ranges([keys[1]], [[room]], [[SIZE]], [[0]])
    assert other.batch_put_session_end([keys[1]]) == [-601]
    assert read(store, keys[1], 0, SIZE) == content(keys[1], SIZE)


@served
def test_a_key_that_was_taken_over_can_be_put_again(
    store: MooncakeStore, opened: tuple[MooncakeStore, MooncakeStore]
) -> None:
    """The library bars such a key to its client for ever: a session that nobody can end."""
    key = page_key("barred")
    loser: Any = opened[1]._native
    assert loser.batch_put_session_start([key], [SIZE]) == [0]
    assert store.put([Item(key, [content(key, SIZE)])], replace=True).ok
    assert loser.batch_put_session_end([key]) == [-601]
    assert loser.batch_put_session_revoke([key]) == [-601]
    assert list(opened[1].put([Item(key, [content(key, SIZE)])]).codes) == [EXISTED]
    assert store.delete([key]).ok
    assert loser.batch_put_session_start([key], [SIZE]) == [-600]  # barred though it is gone
    assert list(opened[1].put([Item(key, [content(key, SIZE, 2)])]).codes) == [OK]
    assert read(store, key, 0, SIZE) == content(key, SIZE, 2)


@served
def test_B102_two_clients_put_the_same_keys_and_each_is_stored_once(
    opened: tuple[MooncakeStore, MooncakeStore], store: MooncakeStore
) -> None:
    keys = [page_key(("both", i)) for i in range(60)]
    items = [Item(key, [content(key, SIZE)]) for key in keys]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda one: one.put(items), opened))
    for i in range(60):
        assert sorted(outcomes.codes[i] for outcomes in both) == [OK, EXISTED]
    assert all(read(store, key, 0, SIZE) == content(key, SIZE) for key, _ in items)


# Replacing


@served
def test_the_library_replaces_an_object_of_the_same_size_under_its_readers(
    store: MooncakeStore, opened: tuple[MooncakeStore, MooncakeStore]
) -> None:
    """The trap that marks avoid: what a reader's session reads changes."""
    key = page_key("torn")
    other: Any = opened[1]._native
    store.put([Item(key, [b"a" * SIZE])])
    assert other.batch_get_session_start([key]) == [0]
    native: Any = store._native
    with store._memory.borrow(SIZE) as mine:
        mine.view[:SIZE] = b"b" * SIZE
        assert native.batch_upsert_from([key], [mine.address], [SIZE]) == [0]
    with opened[1]._memory.borrow(SIZE) as room:
        at = room.address
        assert other.batch_get_into_multi_buffer_ranges([key], [[at]], [[SIZE]], [[0]]) == [SIZE]
        assert room.view[:SIZE] == b"b" * SIZE
    other.batch_get_session_end([key])


@served
@pytest.mark.parametrize("size", [SIZE, SIZE + 1])
def test_B46_a_replaced_object_stays_for_those_who_read_it(
    store: MooncakeStore, opened: tuple[MooncakeStore, MooncakeStore], size: int
) -> None:
    key = page_key("kept")
    store.put([Item(key, [b"a" * SIZE])])
    other: Any = opened[1]._native
    assert other.batch_get_session_start([key]) == [0]
    begun = time.monotonic()
    assert store.put([Item(key, [b"b" * size])], replace=True).ok
    assert time.monotonic() - begun < 0.5  # it did not wait for the lease
    assert read(store, key, 0, size) == b"b" * size
    with opened[1]._memory.borrow(SIZE) as room:
        at = room.address
        assert other.batch_get_into_multi_buffer_ranges([key], [[at]], [[SIZE]], [[0]]) == [SIZE]
        assert room.view[:SIZE] == b"a" * SIZE
    other.batch_get_session_end([key])


@served
def test_who_dies_amid_a_replacement_leaves_a_miss_that_heals(store: MooncakeStore) -> None:
    key = page_key("half")
    store.put([Item(key, [REPLACED[:-1] + b"!"])])  # no mark
    native: Any = store._native
    with store._memory.borrow(61) as room:
        room.view[:61] = REPLACED
        assert native.batch_upsert_from([key], [room.address], [61]) == [0]
    assert list(store.stat([key])) == [None]
    assert [read(store, key, start, stop) for start, stop in ((0, 0), (0, 61), (0, 900))] == [
        MISS
    ] * 3
    assert list(store.put([Item(key, [content(key, SIZE)])]).codes) == [OK]
    assert read(store, key, 0, SIZE) == content(key, SIZE)


@served
@pytest.mark.parametrize("mark", [EMPTY, REPLACED])
def test_objects_as_long_as_a_mark_are_told_apart(store: MooncakeStore, mark: bytes) -> None:
    key, like = page_key("real"), mark[:-1] + b"?"
    assert store.put([Item(key, [like[:7], like[7:]])]).ok
    assert list(store.stat([key])) == [61]
    assert read(store, key, 0, 61) == like
    assert list(store.put([Item(key, [like])]).codes) == [EXISTED]
    outcomes = store.put([Item(key, [mark]), Item(page_key("b"), [b"b"])])
    assert list(outcomes.codes) == [FAILED, OK]
    assert "add a byte" in str(outcomes.errors[0])
    assert not outcomes.errors[0].retryable


# Full


@pytest.mark.parametrize("replace", [True, False])
def test_B96_no_room_once_is_tried_again_and_for_ever_is_an_error(replace: bool) -> None:  # noqa: FBT001
    native = FakeNative({"old": b"old bytes"})
    with fake_store(native, "wait=1&buffer=1MiB") as store:
        native.say("batch_put_session_start", [0, -200], [-200])
        outcomes = store.put([Item("a", [b"a"]), Item("b", [b"b"])], replace=replace)
        assert list(outcomes.codes) == [OK, OK]
        assert native.named("batch_put_session_start") == [("a", "b"), ("b",), ("b",)]
        native.say("batch_put_session_start", *[[-200]] * 999)
        begun = time.monotonic()
        outcomes = store.put([Item("c", [b"c"])], replace=replace)
        assert list(outcomes.codes) == [FAILED]
        assert outcomes.errors[0].retryable
        assert "no room" in str(outcomes.errors[0])
        assert 0.9 < time.monotonic() - begun < 1.5
        assert len(native.named("batch_put_session_start")) < 20
        assert read(store, "old", 0, 9) == b"old bytes"


def test_B96_no_room_for_a_replacement_is_a_miss_and_an_error() -> None:
    native = FakeNative({"old": b"old bytes"})
    with fake_store(native) as store:
        marked = iter([True])
        native.before["batch_upsert_from"] = lambda: (
            None if next(marked, False) else native.say("batch_upsert_from", [-200])
        )
        outcomes = store.put([Item("old", [b"new bytes"])], replace=True)
        assert list(outcomes.codes) == [FAILED]
        assert outcomes.errors[0].retryable
        assert read(store, "old", 0, 9) == MISS
        assert list(store.stat(["old"])) == [None]


@served
def test_more_than_the_store_holds_goes_in_while_eviction_follows(store: MooncakeStore) -> None:
    """The library's own put fails for two of three in such a loop: eviction lags."""
    codes: list[Outcome] = []
    for batch in range(10):
        keys = [page_key((batch, i)) for i in range(10)]
        codes += store.put([Item(key, [content(key, MIB)]) for key in keys]).codes
    assert codes == [OK] * 100  # of a MiB each, into 32
    last = page_key((9, 9))
    assert read(store, last, 0, MIB) == content(last, MIB)


@served
def test_a_batch_larger_than_the_store_answers_each(store: MooncakeStore) -> None:
    keys = [page_key(("wide", i)) for i in range(60)]
    outcomes = store.put([Item(key, [content(key, MIB)]) for key in keys])
    assert set(outcomes.codes) <= {OK, FAILED}
    assert outcomes.codes.count(OK) >= 25
    assert all(error.retryable for error in outcomes.errors.values())
    for key in keys:
        assert read(store, key, 0, MIB) in (content(key, MIB), MISS)


@served
def test_a_full_store_that_cannot_evict_fails_in_time_and_reads_on(
    store: MooncakeStore, other: Any, room: int
) -> None:
    pinned = import_module("mooncake.store").ReplicateConfig()
    pinned.with_hard_pin = True
    held = [page_key(("pin", i)) for i in range(40)]
    assert -200 in other.batch_put_from(held, [room] * 40, [MIB] * 40, pinned)
    begun = time.monotonic()
    outcomes = store.put([Item(page_key("late"), [content("late", 2 * MIB)])])
    assert list(outcomes.codes) == [FAILED]
    assert outcomes.errors[0].retryable
    assert "no room" in str(outcomes.errors[0])
    assert 0.9 < time.monotonic() - begun < 3
    assert isinstance(read(store, held[0], 0, MIB), bytes)
    wipe(store)
    assert store.put([Item(page_key("late"), [content("late", 2 * MIB)])]).ok


@served
def test_an_object_larger_than_any_segment_says_so(store: MooncakeStore) -> None:
    outcomes = store.put([Item("huge", [bytes(40 * MIB)]), Item("small", [b"x"])])
    assert list(outcomes.codes) == [FAILED, OK]
    assert "larger than a segment" in str(outcomes.errors[0])


def test_delete_waits_for_leases_and_no_longer() -> None:
    native = FakeNative({"a": b"a", "b": b"b", "c": b"c"})
    with fake_store(native, "wait=1&buffer=1MiB") as store:
        native.say("batch_remove", [-706, 0, -706], [-706, 0], [-706])
        assert list(store.delete(["a", "b", "c"]).codes) == [OK] * 3
        assert native.named("batch_remove") == [("a", "b", "c"), ("a", "c"), ("a",), ("a",)]
        native.objects["a"] = b"a"
        native.say("batch_remove", *[[-706]] * 99)
        outcomes = store.delete(["a"])
        assert list(outcomes.codes) == [FAILED]
        assert outcomes.errors[0].retryable
        assert "lease" in str(outcomes.errors[0])


@served
def test_what_is_being_read_is_not_removed_under_its_reader(
    store: MooncakeStore, cluster: MooncakeCluster
) -> None:
    key = page_key("leased")
    store.put([Item(key, [content(key, SIZE)])])
    assert read(store, key, 0, SIZE) == content(key, SIZE)
    with_patience: Store = store
    begun = time.monotonic()
    assert list(with_patience.delete([key]).codes) == [OK]
    assert time.monotonic() - begun > 0.5  # of the lease of a second
    assert store.get([Span(key, 0, 1, [memoryview(bytearray(1))])]).codes[0] == MISS
    assert cluster.lease_ms == 1000
