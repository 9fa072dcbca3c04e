"""MooncakeStore reads ranges in sessions that end or fail under it, and from disk."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers.mooncake_cluster import (
    MIB,
    MooncakeCluster,
    require_mooncake,
    running,
    wipe,
)
from tests.servers.mooncake_fake import FakeNative, fake_store
from tests.servers.mooncake_hooked import HookedNative, hooked_store
from unikv.backends import mooncake_ranges
from unikv.backends.mooncake import MooncakeStore
from unikv.backends.mooncake_marks import MARK_BYTES
from unikv.registry import open_store
from unikv.store import Item, Outcome, Span, Store
from unikv.testing import content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome
SIZE = 100_000
served = pytest.mark.mooncake


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeCluster]:
    with running(tmp_path_factory.mktemp("mooncake")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def opened(cluster: MooncakeCluster) -> Iterator[tuple[MooncakeStore, HookedNative]]:
    with hooked_store(cluster) as opened:
        yield opened


@pytest.fixture
def hooked(opened: tuple[MooncakeStore, HookedNative]) -> HookedNative:
    opened[1].before.clear()
    opened[1].calls.clear()
    return opened[1]


@pytest.fixture
def store(opened: tuple[MooncakeStore, HookedNative], hooked: HookedNative) -> MooncakeStore:
    wipe(opened[0])
    hooked.calls.clear()
    return opened[0]


@served
def test_a_session_that_outlives_its_lease_is_opened_anew(
    store: MooncakeStore, hooked: HookedNative
) -> None:
    key = page_key("old")
    store.put([Item(key, [content(key, SIZE)])])
    hooked.before["batch_get_into_multi_buffer_ranges"] = lambda: time.sleep(1.1)
    assert read(store, key, 10, SIZE) == content(key, SIZE)[10:]
    assert hooked.calls.count("batch_get_session_start") == 2


@served
def test_a_session_that_another_thread_ended_is_opened_anew(
    store: MooncakeStore, hooked: HookedNative
) -> None:
    key = page_key("ended")
    store.put([Item(key, [content(key, SIZE)])])
    hooked.before["batch_get_into_multi_buffer_ranges"] = lambda: (
        hooked.native.batch_get_session_end([key])
    )
    assert read(store, key, 10, SIZE) == content(key, SIZE)[10:]


@served
def test_an_object_that_goes_amid_a_read_is_a_miss_or_whole(
    store: MooncakeStore, hooked: HookedNative
) -> None:
    keys = [page_key(i) for i in range(3)]
    store.put([Item(key, [content(key, SIZE)]) for key in keys])

    def lose() -> None:
        hooked.native.batch_get_session_end(keys[1:2])
        hooked.native.batch_remove(keys[1:2], True)  # noqa: FBT003 - by force

    hooked.before["batch_get_into_multi_buffer_ranges"] = lose
    out = [bytearray(SIZE) for _ in keys]
    spans = [Span(key, 0, SIZE, [memoryview(o)]) for key, o in zip(keys, out, strict=True)]
    assert list(store.get(spans).codes) == [OK, MISS, OK]
    assert [bytes(out[i]) for i in (0, 2)] == [content(keys[i], SIZE) for i in (0, 2)]


@served
def test_sessions_are_ended_and_shared(store: MooncakeStore, cluster: MooncakeCluster) -> None:
    """Many threads read the same keys: nobody ends another's session."""
    keys = [page_key(i) for i in range(8)]
    store.put([Item(key, [content(key, SIZE)]) for key in keys])

    def work(thread: int) -> bool:
        for turn in range(40):
            mine = keys[: 1 + (thread + turn) % 8]
            out = [bytearray(900) for _ in mine]
            spans = [
                Span(key, 100 * thread, 100 * thread + 900, [memoryview(o)])
                for key, o in zip(mine, out, strict=True)
            ]
            assert list(store.get(spans).codes) == [OK] * len(mine)
            for key, o in zip(mine, out, strict=True):
                assert o == content(key, SIZE)[100 * thread : 100 * thread + 900]
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert store._reader._sessions._readers == {}
    assert cluster.master is not None


@served
def test_thousands_of_ranges_in_one_call(store: MooncakeStore) -> None:
    keys = [page_key(i) for i in range(3)]
    size = 5000 * 64
    store.put([Item(key, [content(key, size)]) for key in keys])
    arena = memoryview(bytearray(3 * size))
    store.register(arena)
    at = [arena[i * size : (i + 1) * size] for i in range(3)]
    spans = [
        Span(key, start, start + 64, [at[i][size - start - 64 : size - start]])
        for start in range(0, size, 64)
        for i, key in enumerate(keys)
    ]
    assert store.get(spans).ok
    for i, key in enumerate(keys):
        data = content(key, size)
        wanted = b"".join(data[s : s + 64] for s in range(size - 64, -1, -64))
        assert at[i] == wanted


@pytest.mark.parametrize(("bytes_", "keys_"), [(SIZE, 2048), (10 * SIZE, 3)])
def test_a_session_takes_so_much_and_no_more(
    monkeypatch: pytest.MonkeyPatch, bytes_: int, keys_: int
) -> None:
    """It is far below a lease, however much is asked for."""
    monkeypatch.setattr(mooncake_ranges, "CALL_BYTES", bytes_)
    monkeypatch.setattr(mooncake_ranges, "CALL_KEYS", keys_)
    native = FakeNative({f"k{i}": content(f"k{i}", SIZE) for i in range(12)})
    with fake_store(native, "buffer=64MiB") as store:
        out = [bytearray(SIZE) for _ in range(12)]
        spans = [Span(f"k{i}", 0, SIZE, [memoryview(o)]) for i, o in enumerate(out)]
        assert store.get(spans).ok
        assert out == [content(f"k{i}", SIZE) for i in range(12)]
        wanted = 12 if bytes_ == SIZE else 4
        assert len(native.named("batch_get_session_start")) == wanted
        native.objects.clear()
        assert store.put([Item(f"k{i}", [o]) for i, o in enumerate(out)]).ok
        assert len(native.named("batch_put_session_start")) == wanted


# Disk


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MooncakeCluster, Store]]:
    """Provide a store whose owner moves objects to disk, most of 48 MiB of 1 MiB each."""
    require_mooncake()
    folder = tmp_path_factory.mktemp("disk")
    cluster = MooncakeCluster(folder, ["--enable_offload=true"])
    try:
        cluster.start_master()
        cluster.start_owner(16 * MIB, disk=folder / "objects")
        store = open_store(cluster.url())
        for i in range(48):
            key = page_key(i)
            assert store.put([Item(key, [content(key, MIB)])]).ok
            time.sleep(0.05)
        store.put([Item("small", [content("small", MARK_BYTES)]), Item("empty", [])])
        time.sleep(1.5)
        yield cluster, store
        store.close()
    finally:
        cluster.close()


@served
def test_objects_on_disk_are_read_whole_or_in_ranges(
    on_disk: tuple[MooncakeCluster, Store],
) -> None:
    _, store = on_disk
    assert isinstance(store, MooncakeStore)
    keys = [page_key(i) for i in range(48)]
    started = store._native.batch_get_session_start(keys)
    store._native.batch_get_session_end(keys)
    assert started.count(-702) > 10  # the trap: no session on what is on disk only
    arena = memoryview(bytearray(MIB))
    store.register(arena)
    for key in keys:
        assert store.get([Span(key, 0, MIB, [arena])]).ok
        assert arena == content(key, MIB)
    spans = [
        Span(key, start, start + 700, [memoryview(bytearray(700))])
        for key in [*keys[:4], "gone", *keys[-4:]]
        for start in (0, 4096, MIB - 700, MIB - 699)
    ]
    outcomes = store.get(spans)
    for i, (key, start, stop, [view]) in enumerate(spans):
        if key == "gone":
            assert outcomes.codes[i] == MISS
        elif stop > MIB:
            assert outcomes.codes[i] == FAILED
            assert f"the object has {MIB} bytes" in str(outcomes.errors[i])
            assert not outcomes.errors[i].retryable
        else:
            assert outcomes.codes[i] == OK
            assert view == content(key, MIB)[start:stop]


@served
@pytest.mark.parametrize("admin", [False, True])
def test_objects_on_disk_have_their_size(
    on_disk: tuple[MooncakeCluster, Store],
    admin: bool,  # noqa: FBT001
) -> None:
    cluster, store = on_disk
    options = {"admin": cluster.admin} if admin else {}
    asking = open_store(cluster.url(**options))
    keys = [page_key(i) for i in range(48)]
    assert list(asking.stat([*keys, "gone"])) == [MIB] * 48 + [None]
    assert list(asking.stat(["small", "empty"])) == [MARK_BYTES, 0]
    asking.close()
    assert list(store.put([Item(key, [content(key, MIB)]) for key in keys]).codes) == [EXISTED] * 48


@served
def test_an_object_on_disk_is_replaced_and_removed(on_disk: tuple[MooncakeCluster, Store]) -> None:
    _, store = on_disk
    key = page_key(0)
    longer = content("longer", MIB + 1)
    outcomes = store.put([Item(key, [longer])])
    assert outcomes.ok, outcomes
    assert read(store, key, 5, MIB + 1) == longer[5:]
    assert list(store.delete([key]).codes) == [OK]
    assert list(store.stat([key])) == [None]


@served
def test_files_of_a_shared_file_system_are_read(tmp_path: Path) -> None:
    """Objects that others wrote to --root_fs_dir, and whose memory went."""
    require_mooncake()
    files = tmp_path / "shared"
    files.mkdir()
    cluster = MooncakeCluster(tmp_path, [f"--root_fs_dir={files}"])
    try:
        cluster.start_master()
        cluster.start_owner(16 * MIB)
        store = open_store(cluster.url())
        assert isinstance(store, MooncakeStore)
        keys = [page_key(i) for i in range(48)]
        with store._memory.borrow(MIB) as room:
            for key in keys:
                room.view[:MIB] = content(key, MIB)
                for _ in range(20):
                    if store._native.batch_upsert_from([key], [room.address], [MIB]) == [0]:
                        break
                    time.sleep(0.05)
        assert list(store.stat(keys)) == [MIB] * 48
        for key in keys:
            data = bytearray(MIB - 5)
            outcomes = store.get([Span(key, 5, MIB, [memoryview(data)])])
            assert outcomes.ok, outcomes
            assert data == content(key, MIB)[5:]
        # A session writes to memory only, and the master waits for a file that nobody writes.
        assert store.put([Item("ours", [content("ours", MIB)])]).ok
        assert read(store, "ours", 0, MIB) == content("ours", MIB)
        outcomes = store.delete(["ours"])
        assert list(outcomes.codes) == [FAILED]
        assert outcomes.errors[0].retryable
        store.close()
    finally:
        cluster.close()


def test_what_fails_on_disk_fails_alone() -> None:
    native = FakeNative({"a": b"a" * 900, "b": b"b" * 900, "c": b"c" * 900})
    with fake_store(native) as store:
        spans = [Span(key, 0, 900, [memoryview(bytearray(900))]) for key in "abc"]
        for sizes, got, wanted in (
            ([[900], [900], [900]], [[900], [-1102], [900]], [OK, FAILED, OK]),
            ([[900], [-704], [900]], [[900], [900]], [OK, MISS, OK]),
            ([[900], [900], [900]], [[900], [-704], [800]], [OK, MISS, FAILED]),
            ([[-900], [-901], [-801]], [], [FAILED] * 3),
            ([[2**63], [2**50], [900]], [[900]], [FAILED, FAILED, OK]),
        ):
            native.say("batch_get_session_start", [-702] * 3)
            native.say("get_size", *sizes)
            native.say("batch_get_into", *got)
            outcomes = store.get(spans)
            assert list(outcomes.codes) == wanted
            assert all("from disk" in str(error) for error in outcomes.errors.values())
