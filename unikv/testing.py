"""Testing: the promises of a store as tests that every backend runs. It knows no backend.

A backend's test class inherits them all and says how to open its store::

    class TestMyStore(StoreContract):
        def open(self, folder: Path) -> Store:
            return MyStore(folder)

Names of tests carry the ids of the field reports that they answer (B46, B53, ...).
"""

# ruff: noqa: N802 - names carry the ids of field reports

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from unikv.errors import StoreError
from unikv.store import UNKNOWN_SIZE, Item, Span, Store
from unikv.testing_data import (
    EXISTED,
    FAILED,
    HOSTILE_KEYS,
    MISS,
    OK,
    content,
    page_key,
    read,
)
from unikv.testing_ranges import RangePromises

__all__ = ["HOSTILE_KEYS", "StoreContract", "content", "page_key", "read"]


class StoreContract(RangePromises):
    """What `unikv.store.Store` promises. Inherit it and give `open`."""

    lists = True
    """Whether the backend can list."""

    def open(self, folder: Path) -> Store:
        """Open an empty store; ``folder`` is not there yet, for those who want one."""
        raise NotImplementedError

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002 - for those who can
        """Return another store over the same objects, as another process would open it."""
        return store

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """Provide an empty store."""
        store = self.open(tmp_path / "store")
        yield store
        store.close()

    @pytest.fixture
    def second(self, store: Store, tmp_path: Path) -> Iterator[Store]:
        """Provide a second view of the same objects."""
        second = self.open_again(store, tmp_path / "store")
        yield second
        second.close()

    # Batches

    def test_B101_a_key_that_exists_does_not_fail_its_batch(self, store: Store) -> None:
        """The others of the batch are stored, whether the bytes there are equal or not."""
        for there in (b"bytes2", b"foreign"[:6]):
            store.delete([f"key{i}" for i in range(4)])
            store.put([Item("key2", [there])])
            outcomes = store.put([Item(f"key{i}", [b"bytes%d" % i]) for i in range(4)])
            assert list(outcomes.codes) == [OK, OK, EXISTED, OK]
            assert outcomes.ok
            assert read(store, "key2", 0, 6) == there

    def test_a_key_twice_in_a_batch_is_stored_once(self, store: Store) -> None:
        """The second finds the first."""
        assert list(store.put([Item("key", [b"one"]), Item("key", [b"two"])]).codes) == [
            OK,
            EXISTED,
        ]
        assert read(store, "key", 0, 3) == b"one"

    def test_an_empty_batch_is_fine(self, store: Store) -> None:
        """No items, no outcomes, no errors."""
        outcomes = [store.put([]), store.get([]), store.delete([])]
        assert all(batch.ok and not batch.codes and not batch.errors for batch in outcomes)
        assert list(store.stat([])) == []

    def test_hostile_keys_fail_alone(self, store: Store) -> None:
        """A key that no store holds fails by itself, in every call, and says why."""
        keys = [*HOSTILE_KEYS, "fine"]
        expected = [FAILED] * len(HOSTILE_KEYS) + [OK]
        put = store.put([Item(key, [b"data"]) for key in keys])
        get = store.get([Span(key, 0, 4, [memoryview(bytearray(4))]) for key in keys])
        assert list(store.stat(keys))[:-1] == [None] * len(HOSTILE_KEYS)
        delete = store.delete(keys)
        for outcomes in (put, get, delete):
            assert list(outcomes.codes) == expected
            assert sorted(outcomes.errors) == list(range(len(HOSTILE_KEYS)))
            assert "want 1 to 160 characters" in str(outcomes.errors[3])
            assert "'../x'" in str(outcomes.errors[3])

    def test_B103_every_failure_has_its_error(self, store: Store) -> None:
        """Errors stand at the positions of the failed items, and name the key."""
        store.put([Item("key", [b"data"])])
        spans = [Span("key", 0, size, [memoryview(bytearray(size))]) for size in (4, 9, 2, 7)]
        outcomes = store.get(spans)
        assert not outcomes.ok
        assert sorted(outcomes.errors) == [1, 3]
        for size, error in zip((9, 7), outcomes.errors.values(), strict=True):
            assert isinstance(error, StoreError)
            assert all(word in str(error) for word in ("'key'", f"0..{size}", "4 bytes"))

    def test_a_scattered_buffer_fails_alone(self, store: Store) -> None:
        """Buffers are contiguous; one that is not fails its item and leaves nothing of it."""
        items = [Item("a", [b"a", memoryview(b"abcd")[::2]]), Item("b", [b"b"])]
        assert list(store.put(items).codes) == [FAILED, OK]
        assert list(store.stat(["a"])) == [None]

    # Presence

    def test_B97_all_calls_agree_on_what_is_there(self, store: Store) -> None:
        """Stat, get, list and delete see one and the same set of keys."""
        there = [*(page_key(i) for i in range(5)), "ns_0_0"]
        gone = [page_key("gone"), "ns_0_1"]
        store.put([Item(key, [content(key, 40)]) for key in there])
        sizes = store.stat(there + gone)
        assert [size is not None for size in sizes] == [True] * 6 + [False] * 2
        assert all(isinstance(read(store, key, 0, 40), bytes) for key in there)
        assert [read(store, key, 0, 40) for key in gone] == [MISS] * 2
        if self.lists:
            assert sorted(entry.key for entry in store.list()) == sorted(there)
            assert {entry.size for entry in store.list()} == {40}
        assert list(store.delete(there + gone).codes) == [OK] * 6 + [MISS] * 2
        assert list(store.stat(there + gone)) == [None] * 8
        assert list(store.delete(there).codes) == [MISS] * 6

    def test_B92_a_lost_object_is_missed_and_written_anew(
        self, store: Store, second: Store
    ) -> None:
        """No belief in what was there once: the next put writes the one that went, only it."""
        items = [Item(page_key(i), [content(page_key(i), 64)]) for i in range(6)]
        store.put(items)
        second.delete([items[3].key])
        spans = [Span(item.key, 0, 64, [memoryview(bytearray(64))]) for item in items]
        assert list(store.get(spans).codes) == [OK, OK, OK, MISS, OK, OK]
        assert list(store.put(items).codes) == [EXISTED] * 3 + [OK] + [EXISTED] * 2
        assert store.get(spans).ok

    def test_B93_what_another_wrote_is_seen_at_once(self, store: Store, second: Store) -> None:
        """No belief in what was missing once, nor in a size seen before."""
        key = page_key("new")
        assert list(store.stat([key])) == [None]
        assert read(store, key, 0, 4) == MISS
        second.put([Item(key, [b"four"])])
        assert read(store, key, 0, 4) == b"four"
        second.put([Item(key, [b"longer now"])])
        assert store.stat([key])[0] in (10, UNKNOWN_SIZE)
        assert read(store, key, 0, 10) == b"longer now"

    def test_list_narrows_by_prefix(self, store: Store) -> None:
        """Every prefix gives just the keys that begin with it."""
        if not self.lists:
            pytest.skip("the backend cannot list")
        keys = [*(page_key(i) for i in range(40)), "ns_ab_0", "ns_ab_1", "abcd", "0", "_x"]
        store.put([Item(key, [b"x"]) for key in keys])
        first = keys[0]
        prefixes = ["", "ns_", "ns_ab_1", "ab", "abcd", "0", "_", "..", "/", "zz", first + "x"]
        for prefix in [*prefixes, *(first[:n] for n in (1, 2, 3, 4, 5, 64, len(first)))]:
            found = [entry.key for entry in store.list(prefix)]
            assert sorted(found) == sorted(key for key in keys if key.startswith(prefix))

    # Many at once

    def test_B102_of_many_writers_of_one_key_one_stores(self, store: Store) -> None:
        """Sixteen threads put the same object: one stores it, the others find it."""
        for turn in range(5):
            key = page_key(turn)
            item = Item(key, [content(key, 50_000)])
            with ThreadPoolExecutor(16) as pool:
                codes = list(pool.map(lambda item: store.put([item]).codes[0], [item] * 16))
            assert sorted(codes) == [OK] + [EXISTED] * 15
            assert read(store, key, 0, 50_000) == content(key, 50_000)

    def test_B46_a_reader_sees_whole_objects_only(self, store: Store, second: Store) -> None:
        """While a key is put, replaced and deleted, a read is a miss or one whole version."""
        key = page_key("busy")
        whole = {content(key, 30_000, version) for version in range(20)}
        done = Event()

        def watch() -> set[object]:
            seen: set[object] = set()
            while not done.is_set():
                seen.add(read(second, key, 0, 30_000))
            return seen

        with ThreadPoolExecutor(8) as pool:
            watchers = [pool.submit(watch) for _ in range(8)]
            try:
                for version in range(20):
                    data = content(key, 30_000, version)
                    store.put([Item(key, [data[:7], data[7:]])], replace=version % 3 > 0)
                    if version % 3 == 2:
                        store.delete([key])
            finally:
                done.set()
            seen = set[object]().union(*(watcher.result() for watcher in watchers))
        assert seen <= {*whole, MISS}

    def test_B98_a_listing_shows_objects_only(self, store: Store, second: Store) -> None:
        """While four writers store, each key listed is one of theirs, whole in size."""
        if not self.lists:
            pytest.skip("the backend cannot list")
        keys = [page_key(i) for i in range(120)]

        def write(part: Sequence[str]) -> None:
            for key in part:
                store.put([Item(key, [content(key, 20_000)])])

        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, keys[i::4]) for i in range(4)]
            while not all(writer.done() for writer in writers):
                for entry in second.list():
                    assert entry.key in keys
                    assert entry.size == 20_000
        assert sorted(entry.key for entry in second.list()) == sorted(keys)

    # The end

    def test_a_closed_store_says_so(self, store: Store) -> None:
        """Closing twice is fine; every other call then raises."""
        store.close()
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.put([Item("key", [b"x"])]),
            lambda: store.get([Span("key", 0, 0, [])]),
            lambda: store.stat(["key"]),
            lambda: store.delete(["key"]),
            store.list,
        ]
        for call in calls:
            with pytest.raises(StoreError, match="closed"):
                call()
