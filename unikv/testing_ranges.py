"""Range promises: whole objects and ranges of them, as tests. They know no backend."""

# ruff: noqa: N802 - names carry the ids of field reports

import pytest

from unikv.store import UNKNOWN_SIZE, Buffer, Item, Span, Store
from unikv.testing_data import EXISTED, FAILED, MISS, OK, content, page_key, read, views_of


class RangePromises:
    """What a store promises of one object at a time; `unikv.testing.StoreContract` has it all."""

    # Whole objects

    @pytest.mark.parametrize("size", [0, 1, 511, 4096, 1_000_003])
    def test_an_object_comes_back_as_it_was_put(self, store: Store, size: int) -> None:
        """Bytes in, the same bytes out, under a page's key and under any other."""
        for key in (page_key(1, "_H0"), "ns_0123_0", "A", "_"):
            data = content(key, size)
            assert list(store.put([Item(key, [data])]).codes) == [OK]
            assert read(store, key, 0, size) == data
            assert store.stat([key])[0] in (size, UNKNOWN_SIZE)

    def test_buffers_are_joined_in_order(self, store: Store) -> None:
        """An object may come in any number of buffers of any type, empty ones among them."""
        few: list[Buffer] = [
            b"ab",
            bytearray(b"cd"),
            b"",
            memoryview(bytes(8)).cast("I", (2, 1)),
            b"e",
        ]
        many: list[Buffer] = [content("many", 7, i) for i in range(3000)]
        assert store.put([Item("few", few), Item("many", many), Item("none", [])]).ok
        assert read(store, "few", 0, 13) == b"abcd" + bytes(8) + b"e"
        assert read(store, "many", 0, 21_000) == b"".join(many)
        assert read(store, "none", 0, 0) == b""

    def test_put_does_not_alias_the_caller(self, store: Store) -> None:
        """The caller may use its buffers again at once."""
        data = bytearray(b"before")
        store.put([Item("key", [data])])
        data[:] = b"after!"
        assert read(store, "key", 0, 6) == b"before"

    def test_an_object_of_the_same_size_stays(self, store: Store) -> None:
        """Put is if-absent: what is there stays, and the caller learns of it."""
        store.put([Item("key", [b"first"])])
        assert list(store.put([Item("key", [b"other"])]).codes) == [EXISTED]
        assert read(store, "key", 0, 5) == b"first"

    @pytest.mark.parametrize("old", [b"", b"short", b"much too long"])
    def test_an_object_of_another_size_is_replaced(self, store: Store, old: bytes) -> None:
        """A wrong size cannot be the object meant: the store heals."""
        store.put([Item("key", [old])])
        assert list(store.put([Item("key", [b"as meant"])]).codes) == [OK]
        assert read(store, "key", 0, 8) == b"as meant"
        assert store.stat(["key"])[0] in (8, UNKNOWN_SIZE)

    def test_replace_replaces(self, store: Store) -> None:
        """With ``replace`` an object of the same size goes, too, and a new one comes."""
        store.put([Item("key", [b"first"])])
        items = [Item("key", [b"other"]), Item("new", [b"new"])]
        assert list(store.put(items, replace=True).codes) == [OK, OK]
        assert read(store, "key", 0, 5) == b"other"
        assert read(store, "new", 0, 3) == b"new"

    # Ranges

    def test_B53_ranges_are_half_open(self, store: Store) -> None:
        """Each range gives just its bytes; one that ends behind the object fails."""
        n = 1000
        data = bytes(i * 7 % 251 for i in range(n))
        for key in (page_key(2), "other"):
            store.put([Item(key, [data])])
            for start, stop in [(0, 1), (10, 20), (n - 1, n), (0, n), (5, 5), (0, 0), (n, n)]:
                assert read(store, key, start, stop) == data[start:stop]
            for start, stop in [(n - 3, n + 10), (n, n + 1), (n + 5, n + 5), (0, n + 1)]:
                assert read(store, key, start, stop) == FAILED

    def test_B54_a_range_is_read_from_its_offset(self, store: Store) -> None:
        """The third of eight chunks is the third, not the first."""
        store.put([Item("key", [bytes(i // 16 for i in range(128))])])
        assert read(store, "key", 48, 64) == bytes([3]) * 16

    def test_B55_a_missing_object_is_a_miss(self, store: Store) -> None:
        """Nothing is no success: a missing object misses, an empty one has no first byte."""
        store.put([Item("there", [b"x"]), Item("empty", [b""])])
        for key in ("gone", page_key("gone")):
            assert read(store, key, 0, 1) == MISS
            assert read(store, key, 0, 0) == MISS
        assert read(store, "empty", 0, 1) == FAILED
        assert read(store, "empty", 0, 0) == b""

    def test_a_span_is_scattered_over_its_views(self, store: Store) -> None:
        """Views are filled in order, however many, empty ones among them."""
        data = content("key", 10_000)
        store.put([Item("key", [data])])
        out = bytearray(9000)
        views = views_of(out, [*range(0, 9000, 3), 9000, 9000])
        assert store.get([Span("key", 500, 9500, views)]).ok
        assert out == data[500:9500]

    def test_B68_views_hold_as_much_as_the_range(self, store: Store) -> None:
        """A prefix of larger buffers is cut by the caller; what does not fit is refused."""
        data = content("key", 100)
        store.put([Item("key", [data])])
        out = bytearray(b"\xee" * 128)
        view = memoryview(out)
        assert store.get([Span("key", 0, 100, [view[:64], view[64:100]])]).ok
        assert out == data + b"\xee" * 28
        wrong = [[view[:64], view[64:]], [view[:64], view[64:96]], [view], [view[:99]], []]
        outcomes = store.get([Span("key", 0, 100, into) for into in wrong])
        assert list(outcomes.codes) == [FAILED] * len(wrong)
        assert out[100:] == b"\xee" * 28

    def test_a_view_that_cannot_be_filled_fails_alone(self, store: Store) -> None:
        """Read-only and scattered views and ranges that are none do not touch their neighbours."""
        store.put([Item("key", [b"0123456789"])])
        out = bytearray(10)
        spans = [
            Span("key", 0, 10, [memoryview(bytes(10))]),
            Span("key", 0, 10, [memoryview(bytearray(20))[::2]]),
            Span("key", 0, 10, [memoryview(bytearray(5)), memoryview(bytes(5))]),
            Span("key", 7, 3, []),
            Span("key", -1, 3, [memoryview(bytearray(4))]),
            Span("key", 0, 10, [memoryview(out)]),
        ]
        outcomes = store.get(spans)
        assert list(outcomes.codes) == [FAILED] * 5 + [OK]
        assert out == b"0123456789"

    def test_a_batch_of_spans_answers_each(self, store: Store) -> None:
        """Hits, misses and failures stand side by side, for one key many times too."""
        keys = [page_key(i) for i in range(4)]
        store.put([Item(key, [content(key, 100)]) for key in keys[:3]])
        out = [bytearray(10) for _ in range(8)]
        asked = [(0, 0), (0, 90), (3, 0), (1, 50), (0, 95), (2, 0), (2, 20), (0, 10)]
        spans = [
            Span(keys[key], start, start + 10, [memoryview(data)])
            for (key, start), data in zip(asked, out, strict=True)
        ]
        outcomes = store.get(spans)
        assert list(outcomes.codes) == [OK, OK, MISS, OK, FAILED, OK, OK, OK]
        for code, (key, start), data in zip(outcomes.codes, asked, out, strict=True):
            if code == OK:
                assert data == content(keys[key], 100)[start : start + 10]
