"""Faults of items: what is stored, what is read and what the store says of it."""

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends.memory import MemoryStore
from unikv.store import Item, Outcome, Span, Store
from unikv.testing_data import EXISTED, FAILED, MISS, OK, content, read, views_of
from unikv.testing_faults import GARBAGE, FaultyStore, Plan, Rule, faulty

SIZE = 1000


def filled(*rules: Rule) -> tuple[FaultyStore, MemoryStore]:
    """Return a faulty store and the one inside, which holds keys a, b and c."""
    inner = MemoryStore()
    inner.put([Item(key, [content(key, SIZE)]) for key in "abc"])
    return faulty(inner, rules), inner


def whole(store: Store, key: str) -> bytes | Outcome | None:
    size = store.stat([key])[0]
    return None if size is None else read(store, key, 0, size)


def flips(one: bytes, other: object) -> int:
    assert isinstance(other, bytes)
    assert len(one) == len(other)
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


# Get


def test_an_error_fails_its_span_alone_and_leaves_garbage() -> None:
    store, _ = filled(Rule("error", keys="b", retryable=True))
    out = [bytearray(SIZE) for _ in range(3)]
    spans = [Span(key, 0, SIZE, [memoryview(o)]) for key, o in zip("abc", out, strict=True)]
    outcomes = store.get(spans)
    assert list(outcomes.codes) == [OK, FAILED, OK]
    assert list(outcomes.errors) == [1]
    assert outcomes.errors[1].retryable
    assert "'b'" in str(outcomes.errors[1])
    assert set(out[1]) == {GARBAGE}
    assert [out[0], out[2]] == [content("a", SIZE), content("c", SIZE)]


def test_a_missed_object_is_missed_by_get_stat_and_delete() -> None:
    store, inner = filled(Rule("miss", keys="b"))
    assert read(store, "b", 0, 10) == MISS
    assert list(store.stat(["a", "b"])) == [SIZE, None]
    assert list(store.delete(["b"]).codes) == [MISS]
    assert whole(inner, "b") == content("b", SIZE)


def test_a_short_read_leaves_the_rest_as_it_was() -> None:
    store, _ = filled(Rule("short", keys="a"))
    out = bytearray(b"\xee" * SIZE)
    assert store.get([Span("a", 0, SIZE, views_of(out, [3, 3, 700, SIZE]))]).ok
    assert out == content("a", SIZE)[: SIZE // 2] + b"\xee" * (SIZE // 2)


def test_a_flip_turns_one_bit_of_what_is_read() -> None:
    store, inner = filled(Rule("flip", keys="a"))
    seen = {read(store, "a", 100, 200) for _ in range(20)}
    assert all(flips(content("a", SIZE)[100:200], data) == 1 for data in seen)
    assert len(seen) > 10  # at changing places
    assert whole(inner, "a") == content("a", SIZE)


def test_a_swap_reads_another_key() -> None:
    store, _ = filled(Rule("swap", keys="a"))
    assert read(store, "a", 10, 50) == content("a", SIZE)[10:50]  # none is known to swap with
    assert store.counts["swap"] == 0
    read(store, "b", 0, 1)
    read(store, "c", 0, 1)
    assert read(store, "a", 10, 50) == content("c", SIZE)[10:50]
    assert read(store, "b", 10, 50) == content("b", SIZE)[10:50]
    assert store.counts["swap"] == 1


def test_a_swap_passes_over_what_is_gone_or_too_short() -> None:
    store, inner = filled(Rule("swap", keys="a"))
    inner.put([Item("d", [b"short"])])
    for key in "bcd":
        read(store, key, 0, 1)
    inner.delete(["c"])
    assert read(store, "a", 10, 50) == content("b", SIZE)[10:50]


@pytest.mark.parametrize("fault", ["short", "flip", "swap", "late"])
def test_what_is_not_there_is_not_spoilt(fault: Any) -> None:
    store, _ = filled(Rule(fault, how="right" if fault == "late" else ""))
    if fault == "late":
        store.release()
    read(store, "b", 0, 1)
    assert read(store, "gone", 0, 10) == MISS
    assert read(store, "a", 0, SIZE + 1) == FAILED
    assert read(store, "a", 5, 5) == b""
    outcomes = store.get([Span("a", 0, 10, [memoryview(bytes(10))])])  # read-only
    assert list(outcomes.codes) == [FAILED]


@given(st.integers(0, 300), st.integers(0, 300), st.lists(st.integers(0, 300), max_size=4))
def test_right_bytes_fill_any_views(start: int, size: int, cuts: list[int]) -> None:
    store, _ = filled(Rule("late", how="right", seconds=0))
    out = bytearray(size)
    views = views_of(out, [*sorted(min(cut, size) for cut in cuts), size])
    assert store.get([Span("a", start, start + size, views)]).ok
    assert out == content("a", SIZE)[start : start + size]


# Put


def test_a_lost_put_says_stored() -> None:
    store, inner = filled(Rule("lost"))
    assert list(store.put([Item("new", [b"x"]), Item("a", [b"y" * SIZE])]).codes) == [OK, EXISTED]
    assert list(inner.stat(["new", "a"])) == [None, SIZE]
    assert store.counts["lost"] == 1


@pytest.mark.parametrize(("how", "left"), [("cut", b"abc"), ("zero", b"abc\0\0\0\0")])
def test_a_torn_put_stores_a_part_and_says_stored(how: Any, left: bytes) -> None:
    store, inner = filled(Rule("torn", how=how))
    assert list(store.put([Item("new", [b"ab", bytearray(b"cdefg")])]).codes) == [OK]
    assert whole(inner, "new") == left


def test_a_torn_put_that_writes_nothing_tears_nothing() -> None:
    store, inner = filled(Rule("torn"))
    assert list(store.put([Item("a", [b"y" * SIZE])]).codes) == [EXISTED]
    assert whole(inner, "a") == content("a", SIZE)
    assert list(store.put([Item("empty", [])]).codes) == [OK]
    assert store.counts["torn"] == 0
    assert list(store.put([Item("a", [b"y" * SIZE])], replace=True).codes) == [OK]
    assert whole(inner, "a") == b"y" * (SIZE // 2)
    # It heals as after any loss: one of another size is replaced.
    store.heal()
    assert list(store.put([Item("a", [b"y" * SIZE])]).codes) == [OK]


def test_a_flipped_put_differs_in_one_bit() -> None:
    store, inner = filled(Rule("flip", verbs=("put",)))
    data = content("new", SIZE)
    given = bytearray(data)
    assert store.put([Item("new", [given])]).ok
    assert flips(data, whole(inner, "new")) == 1
    assert given == data  # the caller's buffer stays as it was


def test_a_swapped_put_stores_another_keys_bytes() -> None:
    store, inner = filled(Rule("swap", verbs=("put",), keys="x*"))
    store.put([Item("x0", [b"0"])])
    assert whole(inner, "x0") == b"0"  # none is known to swap with
    store.put([Item("x1", [b"one"]), Item("y", [b"two"])])
    assert (whole(inner, "x1"), whole(inner, "y")) == (b"two", b"two")
    store.put([Item("x2", [b"three"])])  # alone: of the store
    assert whole(inner, "x2") == b"two"


def test_a_full_store_keeps_what_it_has() -> None:
    store, inner = filled(Rule("full"))
    outcomes = store.put([Item("new", [b"x"]), Item("a", [b"x"])])
    assert list(outcomes.codes) == [FAILED] * 2
    assert all(error.errno == errno.ENOSPC for error in outcomes.errors.values())
    assert not any(error.retryable for error in outcomes.errors.values())
    assert whole(inner, "new") is None
    assert whole(inner, "a") == content("a", SIZE)


def test_a_put_may_be_done_and_yet_fail() -> None:
    store, inner = filled(Rule("error", keys="x", when="after"))
    outcomes = store.put([Item("w", [b"w"]), Item("x", [b"x"]), Item("y", [b"y"])])
    assert list(outcomes.codes) == [OK, FAILED, OK]
    assert [whole(inner, key) for key in "wxy"] == [b"w", b"x", b"y"]
    before = faulty(inner, [Rule("error", keys="z")])
    assert list(before.put([Item("z", [b"z"])]).codes) == [FAILED]
    assert whole(inner, "z") is None


def test_a_hostile_item_fails_as_it_would_without_faults() -> None:
    spoil = [
        Rule("lost"),
        Rule("torn"),
        Rule("flip", verbs=("put",)),
        Rule("swap", verbs=("put",)),
    ]
    for rule in spoil:
        store = faulty(MemoryStore(), [rule])
        items = [Item("../x", [b"x"]), Item("k", [memoryview(b"abcd")[::2]])]
        assert list(store.put(items).codes) == [FAILED] * 2
        assert store.counts == {}


# Stat, delete, list


def test_errors_of_stat_delete_and_list() -> None:
    store, inner = filled(Rule("error", keys="b*"))
    assert list(store.stat(["a", "b"])) == [SIZE, None]
    outcomes = store.delete(["a", "b"])
    assert list(outcomes.codes) == [OK, FAILED]
    assert list(outcomes.errors) == [1]
    assert whole(inner, "b") == content("b", SIZE)
    with pytest.raises(OSError, match="list 'b'"):
        store.list("b")
    assert [entry.key for entry in store.list("c")] == ["c"]
    gone = faulty(inner, [Rule("error", when="after")])
    assert list(gone.delete(["b"]).codes) == [FAILED]
    assert whole(inner, "b") is None


def test_outcomes_stand_at_the_positions_of_the_call() -> None:
    store, _ = filled(Rule("error", keys="0*"), Rule("miss", keys="1*"), Rule("lost", keys="2*"))
    keys = ["a", "0x", "../no", "1x", "gone", "2x", "b", "0y"]
    out = [bytearray(4) for _ in keys]
    got = store.get([Span(k, 0, 4, [memoryview(o)]) for k, o in zip(keys, out, strict=True)])
    assert list(got.codes) == [OK, FAILED, FAILED, MISS, MISS, MISS, OK, FAILED]
    assert sorted(got.errors) == [1, 2, 7]
    put = store.put([Item(key, [b"x"]) for key in keys])
    assert list(put.codes) == [OK, FAILED, FAILED, OK, OK, OK, OK, FAILED]
    assert sorted(put.errors) == [1, 2, 7]
    assert "'../no'" in str(put.errors[2])


def test_a_store_without_opener_has_none() -> None:
    store = faulty(MemoryStore(), Plan())
    assert getattr(store, "opener", None) is None
