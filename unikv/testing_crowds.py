"""Crowd promises: many threads use one store at once, as tests. They know no backend."""

# ruff: noqa: N802 - names carry the ids of field reports

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from unikv.store import Item, Span, Store
from unikv.testing_checks import expect, expect_true
from unikv.testing_data import EXISTED, MISS, OK, Keys, content, read


class CrowdPromises:
    """Calls from several threads do not meet."""

    def test_B102_of_many_writers_of_one_key_one_stores(self, store: Store, keys: Keys) -> None:
        """Sixteen threads put the same object: one stores it, the others find it."""
        for turn in range(5):
            key = keys.page(turn)
            item = Item(key, [content(key, 50_000)])
            with ThreadPoolExecutor(16) as pool:
                codes = list(pool.map(lambda item: store.put([item]).codes[0], [item] * 16))
            expect(sorted(codes), [OK] + [EXISTED] * 15, "outcomes of sixteen puts")
            expect(read(store, key, 0, 50_000), content(key, 50_000), "get")

    def test_many_threads_use_one_store(self, store: Store, keys: Keys) -> None:
        """Sixteen threads put, stat, read and delete batches of their own, and get only these."""

        def work(thread: int) -> None:
            names = [keys.page((thread, i)) for i in range(8)]
            size = 1000 + 61 * thread
            for turn in range(3):
                data = {key: content(key, size, turn) for key in names}
                codes = store.put([Item(key, [data[key]]) for key in names]).codes
                expect(list(codes), [OK] * 8, f"put of thread {thread}")
                expect_true(None not in store.stat(names), f"stat of thread {thread} misses")
                out = [bytearray(size - 100) for _ in names]
                spans = [
                    Span(key, 100, size, [memoryview(o)]) for key, o in zip(names, out, strict=True)
                ]
                expect(list(store.get(spans).codes), [OK] * 8, f"get of thread {thread}")
                for key, found in zip(names, out, strict=True):
                    expect(bytes(found), data[key][100:], f"an object of thread {thread}")
                expect(list(store.delete(names).codes), [OK] * 8, f"delete of thread {thread}")

        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(work, thread) for thread in range(16)]:
                done.result()

    def test_B46_a_reader_sees_whole_objects_only(
        self, store: Store, second: Store, keys: Keys
    ) -> None:
        """While a key is put, replaced and deleted, a read is a miss or one whole version.

        Or a failure that may pass: some servers ask to come again while an object changes.
        """
        key = keys.page("busy")
        whole = {content(key, 30_000, version) for version in range(20)}
        done = Event()

        def watch() -> set[object]:
            seen: set[object] = set()
            while not done.is_set():
                data = bytearray(30_000)
                outcomes = second.get([Span(key, 0, 30_000, [memoryview(data)])])
                if not any(error.retryable for error in outcomes.errors.values()):
                    seen.add(bytes(data) if outcomes.ok else outcomes.codes[0])
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
        expect(seen - {*whole, MISS}, set(), "what readers saw beside whole versions")
