"""Object promises: what a store promises of one whole object, as tests. They know no backend."""

# ruff: noqa: N802 - names carry the ids of field reports

from array import array

from unikv.store import UNKNOWN_SIZE, Buffer, Item, Span, Store
from unikv.testing_checks import each, expect, expect_true
from unikv.testing_data import EXISTED, FAILED, OK, Keys, content, read, views_of

LARGE = (8 << 20) + 13
"""Bytes of a large object: more than a client library sends in one part, and an odd number."""


class ObjectPromises:
    """What is put comes back, is not put twice, and can be replaced."""

    @each(size=[0, 1, 511, 4096, 1_000_003])
    def test_an_object_comes_back_as_it_was_put(self, store: Store, keys: Keys, size: int) -> None:
        """Bytes in, the same bytes out, under a page's key and under any other."""
        texts = [keys.text(start) for start in ("ns", "A", "_")]
        for key in (keys.page(1, "_H0"), *texts, *keys.exact("A", "_")):
            data = content(key, size)
            expect(list(store.put([Item(key, [data])]).codes), [OK], "put")
            expect(read(store, key, 0, size), data, "get of all bytes")
            expect_true(store.stat([key])[0] in (size, UNKNOWN_SIZE), "stat tells another size")

    def test_a_large_object_comes_back(self, store: Store, keys: Keys) -> None:
        """More than 8 MiB in many buffers go in at once, and come back whole and in ranges."""
        key = keys.page("large")
        data = bytearray(content(key, LARGE))
        cuts = [*range(0, LARGE, 65_537), LARGE]
        expect(list(store.put([Item(key, views_of(data, cuts))]).codes), [OK], "put")
        expect(read(store, key, 0, LARGE), bytes(data), "get of all bytes")
        for start, stop in [(0, 1), (LARGE - 1, LARGE), (5_000_001, 5_200_000)]:
            expect(read(store, key, start, stop), bytes(data[start:stop]), f"bytes {start}..{stop}")

    def test_buffers_are_joined_in_order(self, store: Store, keys: Keys) -> None:
        """An object may come in any number of buffers of any type, empty ones among them."""
        few: list[Buffer] = [b"ab", bytearray(b"cd"), b"", b"e"]
        many: list[Buffer] = [content("many", 7, i) for i in range(3000)]
        names = [keys.page(name) for name in ("few", "many", "none")]
        items = zip(names, (few, many, []), strict=True)
        outcomes = store.put([Item(key, buffers) for key, buffers in items])
        expect(list(outcomes.codes), [OK] * 3, "put of 4, 3000 and no buffers")
        expect(read(store, names[0], 0, 5), b"abcde", "an object of 4 buffers")
        expect(read(store, names[1], 0, 21_000), b"".join(many), "an object of 3000 buffers")
        expect(read(store, names[2], 0, 0), b"", "an object of no buffers")

    def test_B69_buffers_of_any_shape_are_bytes(self, store: Store, keys: Keys) -> None:
        """One layer or many, floats or bytes, of two dimensions or four: the bytes are kept."""
        one = memoryview(array("f", range(24)))
        many = memoryview(array("H", range(120))).cast("B").cast("H", (2, 3, 4, 5))
        flat = memoryview(bytes(8)).cast("I", (2, 1))
        for name, views in {"one": [one], "many": [many], "mixed": [flat, one, many]}.items():
            data = b"".join(view.tobytes() for view in views)
            store.put([Item(keys.page(name), list(views))])
            expect(read(store, keys.page(name), 0, len(data)), data, f"the object of {name}")

    def test_put_does_not_alias_the_caller(self, store: Store, keys: Keys) -> None:
        """The caller may use its buffers again at once."""
        data = bytearray(b"before")
        store.put([Item(keys.page(0), [data])])
        data[:] = b"after!"
        expect(read(store, keys.page(0), 0, 6), b"before", "get after the buffer changed")

    def test_no_buffer_is_held_after_its_call(self, store: Store, keys: Keys) -> None:
        """Buffers and views are free when a call is over, also of items that failed or were there.

        A `bytearray` of which somebody holds a view cannot be resized.
        """
        key, there, other, into = keys.page(0), bytearray(100), bytearray(100), bytearray(100)
        out = memoryview(into)
        outcomes = [  # kept, errors and all
            store.put([Item(key, [there])]),
            store.put([Item(key, [there]), Item("../x", [other])]),
            store.get([Span(key, 50, 150, [out]), Span(keys.page(1), 0, 100, [out])]),
            store.get([Span(key, 0, 100, [out])]),
        ]
        for name, buffer in {"put": there, "failed": other, "read": into}.items():
            try:
                out.release()
                buffer.clear()
            except BufferError:
                raise AssertionError(f"the store holds the buffer that was {name}") from None
        expect([batch.ok for batch in outcomes], [True, False, False, True], "whether all is well")

    # If-absent, or not

    def test_an_object_of_the_same_size_stays(self, store: Store, keys: Keys) -> None:
        """Put is if-absent: what is there stays, and the caller learns of it."""
        key = keys.page(0)
        store.put([Item(key, [b"first"])])
        expect(list(store.put([Item(key, [b"other"])]).codes), [EXISTED], "the second put")
        expect(read(store, key, 0, 5), b"first", "get")

    @each(old=[b"", b"short", b"much too long"])
    def test_an_object_of_another_size_is_replaced(
        self, store: Store, keys: Keys, old: bytes
    ) -> None:
        """A wrong size cannot be the object meant: the store heals."""
        key = keys.page(0)
        store.put([Item(key, [old])])
        expect(list(store.put([Item(key, [b"as meant"])]).codes), [OK], "the second put")
        expect(read(store, key, 0, 8), b"as meant", "get")
        expect_true(store.stat([key])[0] in (8, UNKNOWN_SIZE), "stat tells another size")

    def test_replace_replaces(self, store: Store, keys: Keys) -> None:
        """With ``replace`` an object of the same size goes, too, and a new one comes."""
        old, new = keys.page("old"), keys.page("new")
        store.put([Item(old, [b"first"])])
        items = [Item(old, [b"other"]), Item(new, [b"new"])]
        expect(list(store.put(items, replace=True).codes), [OK, OK], "put with replace")
        expect(read(store, old, 0, 5), b"other", "get of what was replaced")
        expect(read(store, new, 0, 3), b"new", "get of what is new")

    @each(size=[0, 1, 4999, 5001, 70_000])
    def test_replace_changes_the_size(self, store: Store, keys: Keys, size: int) -> None:
        """What comes in the place of another is neither cut nor padded to its size."""
        key = keys.page(0)
        store.put([Item(key, [content(key, 5000)])])
        data = content(key, size, 1)
        expect(list(store.put([Item(key, [data])], replace=True).codes), [OK], "put with replace")
        expect(read(store, key, 0, size), data, "get of all bytes")
        expect(read(store, key, 0, size + 1), FAILED, "get of one byte more")
        expect_true(store.stat([key])[0] in (size, UNKNOWN_SIZE), "stat tells another size")
