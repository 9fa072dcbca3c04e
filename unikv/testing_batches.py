"""Batch promises: each item of a batch is answered by itself, as tests. They know no backend."""

# ruff: noqa: N802 - names carry the ids of field reports

from unikv.errors import StoreError
from unikv.store import UNKNOWN_SIZE, Item, Span, Store
from unikv.testing_checks import expect, expect_error, expect_true
from unikv.testing_data import EXISTED, FAILED, HOSTILE_KEYS, MISS, OK, Keys, content, read

MANY = 400
"""Objects of a large batch: more than a server takes in one request of many."""


class BatchPromises:
    """One bad key never fails its batch, and all calls agree on what is there."""

    def test_B101_a_key_that_exists_does_not_fail_its_batch(self, store: Store, keys: Keys) -> None:
        """The others of the batch are stored, whether the bytes there are equal or not."""
        names = [keys.page(i) for i in range(4)]
        for there in (b"bytes2", b"foreign"[:6]):
            store.delete(names)
            store.put([Item(names[2], [there])])
            outcomes = store.put([Item(names[i], [b"bytes%d" % i]) for i in range(4)])
            expect(list(outcomes.codes), [OK, OK, EXISTED, OK], "put of four")
            expect_true(outcomes.ok, "a batch that is there counts as failed")
            expect(read(store, names[2], 0, 6), there, "the object that was there")

    def test_a_key_twice_in_a_batch_is_stored_once(self, store: Store, keys: Keys) -> None:
        """The second finds the first."""
        key = keys.page(0)
        outcomes = store.put([Item(key, [b"one"]), Item(key, [b"two"])])
        expect(list(outcomes.codes), [OK, EXISTED], "put of one key twice")
        expect(read(store, key, 0, 3), b"one", "get")

    def test_an_empty_batch_is_fine(self, store: Store) -> None:
        """No items, no outcomes, no errors."""
        for batch in (store.put([]), store.get([]), store.delete([])):
            expect_true(batch.ok, "an empty batch fails")
            expect((len(batch.codes), dict(batch.errors)), (0, {}), "outcomes of no item")
        expect(list(store.stat([])), [], "stat of no key")

    def test_a_large_batch_answers_each(self, store: Store, keys: Keys) -> None:
        """Hundreds of objects, some of them missing, are told apart in every call."""
        names = [keys.page(i) for i in range(MANY)]
        size = {key: 1 + i * 37 % 2000 for i, key in enumerate(names)}
        stored = [key for i, key in enumerate(names) if i % 7]
        outcomes = store.put([Item(key, [content(key, size[key])]) for key in stored])
        expect(list(outcomes.codes), [OK] * len(stored), "put")
        mixed = sorted(names)
        there = [key in set(stored) for key in mixed]
        for key, was, told in zip(mixed, there, store.stat(mixed), strict=True):
            expect_true(told in ((size[key], UNKNOWN_SIZE) if was else (None,)), "stat is wrong")
        out = [bytearray(size[key]) for key in mixed]
        spans = [
            Span(key, 0, size[key], [memoryview(data)])
            for key, data in zip(mixed, out, strict=True)
        ]
        wanted = [OK if was else MISS for was in there]
        expect(list(store.get(spans).codes), wanted, "get")
        for key, was, data in zip(mixed, there, out, strict=True):
            if was:
                expect(bytes(data), content(key, size[key]), f"the object of {size[key]} bytes")
        expect(list(store.delete(mixed).codes), wanted, "delete")
        expect(list(store.stat(mixed)), [None] * MANY, "stat after delete")

    # Failures

    def test_hostile_keys_fail_alone(self, store: Store, keys: Keys) -> None:
        """A key that no store holds fails by itself, in every call, and says why."""
        names = [*HOSTILE_KEYS, keys.page("fine")]
        put = store.put([Item(key, [b"data"]) for key in names])
        get = store.get([Span(key, 0, 4, [memoryview(bytearray(4))]) for key in names])
        expect(list(store.stat(names))[:-1], [None] * len(HOSTILE_KEYS), "stat of bad keys")
        delete = store.delete(names)
        for call, outcomes in {"put": put, "get": get, "delete": delete}.items():
            expect(list(outcomes.codes), [FAILED] * len(HOSTILE_KEYS) + [OK], call)
            expect(sorted(outcomes.errors), list(range(len(HOSTILE_KEYS))), f"errors of {call}")
            for word in ("want 1 to 160 characters", "'../x'"):
                expect_true(word in str(outcomes.errors[3]), f"{call}: no {word} in the error")

    def test_keys_are_told_apart(self, store: Store, keys: Keys) -> None:
        """By case, by length up to 160, and where one begins as another or has dots and dashes."""
        short = keys.text("Key")
        names = [short, *keys.exact("key", "KEY", "kEy"), keys.text("key"), keys.text("KEY")]
        names += [keys.text("key", end) for end in (".", "..", "-", ".0", "_0", "0", ".tmp")]
        names.append(keys.text("L", "x" * (160 - len(keys.text("L")))))
        outcomes = store.put([Item(key, [content(key, 99)]) for key in names])
        expect(list(outcomes.codes), [OK] * len(names), "put")
        for key in names:
            expect(read(store, key, 0, 99), content(key, 99), f"get of {key!r}")
        expect(list(store.delete([short]).codes), [OK], "delete of one")
        expect(
            [size is None for size in store.stat(names)],
            [True] + [False] * (len(names) - 1),
            "what stat misses",
        )

    def test_B103_every_failure_has_its_error(self, store: Store, keys: Keys) -> None:
        """Errors stand at the positions of the failed items, name the key, and say why."""
        key = keys.page(0)
        store.put([Item(key, [b"data"])])
        spans = [Span(key, 0, size, [memoryview(bytearray(size))]) for size in (4, 9, 2, 7)]
        outcomes = store.get(spans)
        expect_true(not outcomes.ok, "a batch with failures counts as fine")
        expect(sorted(outcomes.errors), [1, 3], "positions of errors")
        for size, position in ((9, 1), (7, 3)):
            error = outcomes.errors[position]
            expect_true(isinstance(error, StoreError), f"{error!r} is no StoreError")
            for word in (repr(key), f"0..{size}", "4 bytes"):
                expect_true(word in str(error), f"no {word} in the error: {str(error)!r:.200}")

    def test_no_retry_helps_what_is_wrong_itself(self, store: Store, keys: Keys) -> None:
        """An error that would come again is not marked as one that may pass."""
        key = keys.page(0)
        store.put([Item(key, [b"data"])])
        wrong = [
            store.put([Item("../x", [b"x"])]),
            store.get([Span(key, 0, 9, [memoryview(bytearray(9))])]),
            store.get([Span(key, 0, 4, [memoryview(bytearray(3))])]),
        ]
        expect([dict(outcomes.errors)[0].retryable for outcomes in wrong], [False] * 3, "retryable")

    def test_a_buffer_that_is_none_fails_alone(self, store: Store, keys: Keys) -> None:
        """Buffers are contiguous bytes; one that is not fails its item and leaves nothing of it."""
        released = memoryview(bytearray(2))
        released.release()
        wrong = [memoryview(b"abcd")[::2], released, "text", None]
        bad, good = [keys.page(f"bad{i}") for i in range(len(wrong))], keys.page("good")
        items = [Item(key, [b"a", one]) for key, one in zip(bad, wrong, strict=True)]  # type: ignore[list-item]
        expect(list(store.put([*items, Item(good, [b"b"])]).codes), [FAILED] * 4 + [OK], "put")
        expect(list(store.stat(bad)), [None] * 4, "stat of what failed")

    # Presence

    def test_B97_all_calls_agree_on_what_is_there(self, store: Store, keys: Keys) -> None:
        """Stat, get and delete see one and the same set of keys."""
        there = [*(keys.page(i) for i in range(5)), keys.text("ns", "_0")]
        gone = [keys.page("gone"), keys.text("ns", "_1")]
        store.put([Item(key, [content(key, 40)]) for key in there])
        sizes = store.stat(there + gone)
        expect([size is not None for size in sizes], [True] * 6 + [False] * 2, "what stat finds")
        expect([read(store, key, 0, 40) for key in there], [content(k, 40) for k in there], "get")
        expect([read(store, key, 0, 40) for key in gone], [MISS] * 2, "get of what is not there")
        expect(list(store.delete(there + gone).codes), [OK] * 6 + [MISS] * 2, "delete")
        expect(list(store.stat(there + gone)), [None] * 8, "stat after delete")
        expect(list(store.delete(there).codes), [MISS] * 6, "delete of what is gone")

    def test_B92_a_lost_object_is_missed_and_written_anew(
        self, store: Store, second: Store, keys: Keys
    ) -> None:
        """No belief in what was there once: the next put writes the one that went, only it."""
        items = [Item(keys.page(i), [content(keys.page(i), 64)]) for i in range(6)]
        store.put(items)
        second.delete([items[3].key])
        spans = [Span(item.key, 0, 64, [memoryview(bytearray(64))]) for item in items]
        expect(list(store.get(spans).codes), [OK, OK, OK, MISS, OK, OK], "get")
        wanted = [EXISTED] * 3 + [OK] + [EXISTED] * 2
        expect(list(store.put(items).codes), wanted, "put of all")
        expect_true(store.get(spans).ok, "get after the second put fails")

    def test_B93_what_another_wrote_is_seen_at_once(
        self, store: Store, second: Store, keys: Keys
    ) -> None:
        """No belief in what was missing once, nor in a size seen before."""
        key = keys.page("new")
        expect(list(store.stat([key])), [None], "stat before the put")
        expect(read(store, key, 0, 4), MISS, "get before the put")
        second.put([Item(key, [b"four"])])
        expect(read(store, key, 0, 4), b"four", "get after another's put")
        second.put([Item(key, [b"longer now"])])
        expect_true(store.stat([key])[0] in (10, UNKNOWN_SIZE), "stat tells the size before")
        expect(read(store, key, 0, 10), b"longer now", "get after another's replacement")

    # The end

    def test_a_closed_store_says_so(self, store: Store) -> None:
        """Closing twice is fine; every other call then raises."""
        store.close()
        store.close()
        with expect_error("closed", "put of a closed store"):
            store.put([Item("key", [b"x"])])
        with expect_error("closed", "get of a closed store"):
            store.get([Span("key", 0, 0, [])])
        with expect_error("closed", "stat of a closed store"):
            store.stat(["key"])
        with expect_error("closed", "delete of a closed store"):
            store.delete(["key"])
        with expect_error("closed", "list of a closed store"):
            store.list()
