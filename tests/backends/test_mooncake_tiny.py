"""Objects and ranges so small that a mark may take their place: never its bytes, never a wait."""

import threading
import time
from pathlib import Path

import pytest

from tests.servers.mooncake_cluster import running
from tests.servers.mooncake_fake import FakeNative, fake_store
from unikv.backends.mooncake_marks import EMPTY, MARK_BYTES, REPLACED
from unikv.backends.mooncake_memory import ROOMS
from unikv.registry import open_store
from unikv.store import Item, Outcome, Span, Store
from unikv.testing import content, read

OK, EXISTED, MISS, FAILED = Outcome


@pytest.mark.parametrize("mark", [REPLACED, EMPTY])
@pytest.mark.parametrize("stop", [1, 16, MARK_BYTES])
def test_a_mark_that_comes_amid_a_read_of_a_large_object_is_not_read(
    mark: bytes, stop: int
) -> None:
    native = FakeNative({"key": content("key", 4096)})
    with fake_store(native) as store:
        native.before["batch_get_session_start"] = lambda: native.objects.update(key=mark)
        out = memoryview(bytearray(stop))
        outcomes = store.get([Span("key", 0, stop, [out])])
        assert outcomes.codes[0] == (MISS if mark == REPLACED else FAILED)
        native.before.clear()
        native.objects["key"] = content("key", 4096)
        assert store.get([Span("key", 0, stop, [out])]).ok
        assert bytes(out) == content("key", 4096)[:stop]


@pytest.mark.parametrize(
    ("size", "mark", "code"),
    [(10, REPLACED, FAILED), (MARK_BYTES, REPLACED, MISS), (MARK_BYTES, EMPTY, FAILED)],
)
def test_a_mark_amid_a_read_of_a_tiny_object_is_not_read(
    size: int, mark: bytes, code: Outcome
) -> None:
    data = content("key", size)
    native = FakeNative({"key": data, "other": b"other"})
    with fake_store(native) as store:
        assert read(store, "key", 2, size - 1) == data[2:-1]
        looks = iter([False] * (size == MARK_BYTES))  # one of them asks what the 61 bytes are

        def replace() -> None:
            if next(looks, True):
                native.objects["key"] = mark

        native.before["batch_get_into"] = replace
        outcomes = store.get(
            [
                Span("key", 0, 5, [memoryview(bytearray(5))]),
                Span("other", 0, 5, [out := memoryview(bytearray(5))]),
            ]
        )
        assert list(outcomes.codes) == [code, OK]
        assert bytes(out) == b"other"
        assert all(error.retryable for error in outcomes.errors.values())


def test_ranges_of_tiny_objects_come_whatever_their_views() -> None:
    native = FakeNative({"key": bytes(range(40))})
    with fake_store(native) as store:
        views = [memoryview(bytearray(n)) for n in (3, 0, 7, 20)]
        assert store.get([Span("key", 5, 35, views)]).ok
        assert b"".join(views) == bytes(range(5, 35))
        assert read(store, "key", 35, 41) == FAILED
        assert read(store, "gone", 35, 41) == MISS


def test_threads_that_all_have_a_room_do_not_wait_for_another() -> None:
    """Each puts an empty object that is there already, and looks what the mark stands for."""
    native = FakeNative({f"key{n}": EMPTY for n in range(ROOMS)})
    meet = threading.Barrier(ROOMS, timeout=10)
    found: list[Outcome] = []
    with fake_store(native) as store:
        native.before["batch_put_session_start"] = lambda: _wait(meet)

        def put(n: int) -> None:
            found.extend(store.put([Item(f"key{n}", [b""])]).codes)

        threads = [threading.Thread(target=put, args=(n,), daemon=True) for n in range(ROOMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert found == [EXISTED] * ROOMS


def _wait(meet: threading.Barrier) -> None:
    meet.wait()


@pytest.mark.mooncake
def test_who_reads_the_front_of_an_object_that_is_replaced_sees_one_of_both(tmp_path: Path) -> None:
    """Beside a writer that replaces it as fast as it can, for two seconds."""
    with running(tmp_path) as cluster:
        _read_beside_a_writer(open_store(cluster.url()))


def _read_beside_a_writer(store: Store) -> None:
    store.put([Item("key", [b"A" * 4096])])
    stop, wrong, reads = time.monotonic() + 2, list[bytes](), [0]

    def look() -> None:
        while time.monotonic() < stop:
            out = memoryview(bytearray(16))
            reads[0] += 1
            if store.get([Span("key", 0, 16, [out])]).ok and bytes(out) not in {
                b"A" * 16,
                b"B" * 16,
            }:
                wrong.append(bytes(out))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    while time.monotonic() < stop:
        for data in (b"B", b"A"):
            store.put([Item("key", [data * 4096])], replace=True)
    for thread in threads:
        thread.join()
    store.close()
    assert wrong == []
    assert reads[0] > 100
