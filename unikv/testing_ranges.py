"""Range promises: what a store promises of parts of objects, as tests. They know no backend."""

# ruff: noqa: N802 - names carry the ids of field reports

from unikv.store import Item, Span, Store
from unikv.testing_checks import expect, expect_true
from unikv.testing_data import FAILED, MISS, OK, Keys, content, read, views_of


class RangePromises:
    """Each range gives just its bytes, or says why not."""

    def test_B53_ranges_are_half_open(self, store: Store, keys: Keys) -> None:
        """Each range gives just its bytes; one that ends behind the object fails."""
        n = 1000
        data = bytes(i * 7 % 251 for i in range(n))
        for key in (keys.page(2), keys.text("other")):
            store.put([Item(key, [data])])
            for start, stop in [(0, 1), (10, 20), (n - 1, n), (0, n), (5, 5), (0, 0), (n, n)]:
                expect(read(store, key, start, stop), data[start:stop], f"bytes {start}..{stop}")
            for start, stop in [(n - 3, n + 10), (n, n + 1), (n + 5, n + 5), (0, n + 1)]:
                expect(read(store, key, start, stop), FAILED, f"bytes {start}..{stop} of {n}")

    def test_B54_a_range_is_read_from_its_offset(self, store: Store, keys: Keys) -> None:
        """The third of eight chunks is the third, not the first."""
        store.put([Item(keys.page(0), [bytes(i // 16 for i in range(128))])])
        expect(read(store, keys.page(0), 48, 64), bytes([3]) * 16, "bytes 48..64")

    def test_B55_a_missing_object_is_a_miss(self, store: Store, keys: Keys) -> None:
        """Nothing is no success: a missing object misses, an empty one has no first byte."""
        there, empty = keys.page("there"), keys.page("empty")
        store.put([Item(there, [b"x"]), Item(empty, [b""])])
        for key in (keys.text("gone"), keys.page("gone")):
            expect(read(store, key, 0, 1), MISS, "a byte of a missing object")
            expect(read(store, key, 0, 0), MISS, "no byte of a missing object")
        expect(read(store, empty, 0, 1), FAILED, "a byte of an empty object")
        expect(read(store, empty, 0, 0), b"", "no byte of an empty object")

    def test_B55_only_the_missing_of_a_batch_miss(self, store: Store, keys: Keys) -> None:
        """Of three, the second is missing, the third empty: one hit, one miss, one failure."""
        names = [keys.page(i) for i in range(3)]
        store.put([Item(names[0], [b"whole"]), Item(names[2], [b""])])
        spans = [Span(key, 0, 5, [memoryview(bytearray(5))]) for key in names]
        expect(list(store.get(spans).codes), [OK, MISS, FAILED], "get")
        store.put([Item(key, [b"whole"]) for key in names])
        expect(list(store.get(spans).codes), [OK, OK, OK], "get after the next put")

    def test_B67_a_short_object_fails_alone(self, store: Store, keys: Keys) -> None:
        """Of five pages the third is cut short: it fails, the others come, and so does the next."""
        names = [keys.page(i) for i in range(5)]
        sizes = [4096, 4096, 1000, 4096, 4096]
        store.put([Item(key, [content(key, n)]) for key, n in zip(names, sizes, strict=True)])
        out = [bytearray(4096) for _ in names]
        spans = [Span(key, 0, 4096, [memoryview(o)]) for key, o in zip(names, out, strict=True)]
        for _ in range(2):
            outcomes = store.get(spans)
            expect(list(outcomes.codes), [OK, OK, FAILED, OK, OK], "get")
            for position in (0, 1, 3, 4):
                wanted = content(names[position], 4096)
                expect(bytes(out[position]), wanted, f"page {position}")
        store.put([Item(names[2], [content(names[2], 4096)])])
        expect(list(store.get(spans).codes), [OK] * 5, "get of what was healed")

    def test_ranges_lie_at_any_offset(self, store: Store, keys: Keys) -> None:
        """Odd, overlapping, adjacent and backward ranges of one object come in one batch."""
        key, size = keys.page("odd"), 300_007
        data = content(key, size)
        store.put([Item(key, [data])])
        starts = [*range(1, 299_000, 9_973), *range(250_001, 1, -31_001), 7, 7, 8, 262_143, 262_144]
        lengths = [1, 3, 511, 513, 4095, 4097, 999, 1001]
        asked = [(start, start + lengths[i % 8]) for i, start in enumerate(starts)]
        asked += [(0, 65_537), (65_537, 131_071), (131_071, size), (0, size)]
        asked = [(start, min(stop, size)) for start, stop in asked]
        out = [bytearray(stop - start) for start, stop in asked]
        spans = [
            Span(key, start, stop, [memoryview(o)])
            for (start, stop), o in zip(asked, out, strict=True)
        ]
        expect(list(store.get(spans).codes), [OK] * len(spans), "get")
        for (start, stop), found in zip(asked, out, strict=True):
            expect(bytes(found), data[start:stop], f"bytes {start}..{stop}")

    def test_no_range_is_so_far_that_others_fail(self, store: Store, keys: Keys) -> None:
        """A range that no number of a file system or a protocol can hold fails alone."""
        key, gone = keys.page("far"), keys.page("gone")
        data = content(key, 1000)
        store.put([Item(key, [data])])
        for start in (2**31 - 8, 2**32, 2**63 - 8, 2**63, 2**64 - 8, 2**64, 2**70):
            out = bytearray(1000)
            near = Span(key, 0, 1000, [memoryview(out)])
            far = [Span(k, start, start + 16, [memoryview(bytearray(16))]) for k in (key, gone)]
            outcomes = store.get([*far, near])
            expect(list(outcomes.codes), [FAILED, MISS, OK], f"get from {start} on")
            expect(bytes(out), data, f"bytes 0..1000 beside a range from {start} on")

    # Views

    def test_a_span_is_scattered_over_its_views(self, store: Store, keys: Keys) -> None:
        """Views are filled in order, however many, empty ones among them."""
        key = keys.page(0)
        data = content(key, 10_000)
        store.put([Item(key, [data])])
        out = bytearray(9000)
        views = views_of(out, [*range(0, 9000, 3), 9000, 9000])
        expect_true(store.get([Span(key, 500, 9500, views)]).ok, "get into 3000 views fails")
        expect(bytes(out), data[500:9500], "bytes 500..9500")

    def test_views_lie_at_any_address(self, store: Store, keys: Keys) -> None:
        """Views at odd addresses are filled, and no byte beside them."""
        key = keys.page(0)
        data = content(key, 200)
        store.put([Item(key, [data])])
        out = bytearray(b"\xee" * 220)
        view = memoryview(out)
        into = [view[3:4], view[9:121], view[121:208]]
        expect_true(store.get([Span(key, 0, 200, into)]).ok, "get into three views fails")
        wanted = b"\xee" * 3 + data[:1] + b"\xee" * 5 + data[1:] + b"\xee" * 12
        expect(bytes(out), wanted, "the buffer")

    def test_B68_views_hold_as_much_as_the_range(self, store: Store, keys: Keys) -> None:
        """A prefix of larger buffers is cut by the caller; what does not fit is refused."""
        key = keys.page(0)
        data = content(key, 100)
        store.put([Item(key, [data])])
        out = bytearray(b"\xee" * 128)
        view = memoryview(out)
        fitting = Span(key, 0, 100, [view[:64], view[64:100]])
        expect_true(store.get([fitting]).ok, "get into views that fit fails")
        expect(bytes(out), data + b"\xee" * 28, "bytes")
        wrong = [[view[:64], view[64:]], [view[:64], view[64:96]], [view], [view[:99]], []]
        released = memoryview(bytearray(100))
        released.release()
        read_only: list[memoryview] = [memoryview(bytes(100)), bytes(100)]  # type: ignore[list-item]
        wrong += [[released], *([one] for one in read_only)]
        outcomes = store.get([*(Span(key, 0, 100, into) for into in wrong), fitting])
        expect(list(outcomes.codes), [FAILED] * len(wrong) + [OK], "get into views that do not fit")
        expect(bytes(out[100:]), b"\xee" * 28, "bytes behind the object")

    def test_a_view_that_cannot_be_filled_fails_alone(self, store: Store, keys: Keys) -> None:
        """Read-only and scattered views and ranges that are none do not touch their neighbours."""
        key = keys.page(0)
        store.put([Item(key, [b"0123456789"])])
        out = bytearray(10)
        spans = [
            Span(key, 0, 10, [memoryview(bytes(10))]),
            Span(key, 0, 10, [memoryview(bytearray(20))[::2]]),
            Span(key, 0, 10, [memoryview(bytearray(5)), memoryview(bytes(5))]),
            Span(key, 7, 3, []),
            Span(key, -1, 3, [memoryview(bytearray(4))]),
            Span(key, 0, 10, [memoryview(out)]),
        ]
        expect(list(store.get(spans).codes), [FAILED] * 5 + [OK], "get")
        expect(bytes(out), b"0123456789", "the span that could be filled")

    def test_a_batch_of_spans_answers_each(self, store: Store, keys: Keys) -> None:
        """Hits, misses and failures stand side by side, for one key many times too."""
        names = [keys.page(i) for i in range(4)]
        store.put([Item(key, [content(key, 100)]) for key in names[:3]])
        out = [bytearray(10) for _ in range(8)]
        asked = [(0, 0), (0, 90), (3, 0), (1, 50), (0, 95), (2, 0), (2, 20), (0, 10)]
        spans = [
            Span(names[key], start, start + 10, [memoryview(data)])
            for (key, start), data in zip(asked, out, strict=True)
        ]
        codes = list(store.get(spans).codes)
        expect(codes, [OK, OK, MISS, OK, FAILED, OK, OK, OK], "get")
        for code, (key, start), data in zip(codes, asked, out, strict=True):
            if code == OK:
                wanted = content(names[key], 100)[start : start + 10]
                expect(bytes(data), wanted, f"bytes {start}..{start + 10} of object {key}")
