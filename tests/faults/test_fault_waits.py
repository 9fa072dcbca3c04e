"""Delays, hangs and late writes: when calls return, what they write, and who sets them free."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from contextlib import contextmanager
from pathlib import Path

import pytest

from unikv.backends.memory import MemoryStore
from unikv.store import Item, Outcome, Span
from unikv.testing_data import FAILED, MISS, OK, content
from unikv.testing_faults import GARBAGE, FaultyStore, Rule, faulty

SIZE = 300
KEPT = b"\xee" * SIZE


def filled(*rules: Rule) -> FaultyStore:
    inner = MemoryStore()
    inner.put([Item(key, [content(key, SIZE)]) for key in "abc"])
    return faulty(inner, rules)


@contextmanager
def beside(store: FaultyStore) -> Iterator[ThreadPoolExecutor]:
    """Provide threads, and leave none of them behind."""
    with ThreadPoolExecutor(4) as pool:
        try:
            yield pool
        finally:
            store.release()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def get(store: FaultyStore, key: str, out: bytearray) -> Outcome:
    return store.get([Span(key, 0, SIZE, [memoryview(out)])]).codes[0]


def assert_waits(future: Future[Outcome]) -> None:
    with pytest.raises(NotDone):
        future.result(0.05)


def test_a_delay_waits_and_does_what_it_should() -> None:
    store = filled(Rule("delay", verbs=("get",), seconds=0.1))
    out = bytearray(KEPT)
    begun = time.monotonic()
    assert get(store, "a", out) == OK
    assert 0.1 <= time.monotonic() - begun < 5
    assert out == content("a", SIZE)
    begun = time.monotonic()
    store.stat(["a"])
    assert time.monotonic() - begun < 0.1


def test_a_hang_ends_by_release_and_does_nothing() -> None:
    store = filled(Rule("hang", verbs=("get",), retryable=True))
    out = bytearray(KEPT)
    with beside(store) as pool:
        future = pool.submit(store.get, [Span("a", 0, SIZE, [memoryview(out)])])
        until(lambda: store.waiting == 1)
        with pytest.raises(NotDone):
            future.result(0.05)
        assert store.counts == {"hang": 1}
        store.release()
        outcomes = future.result(5)
    assert list(outcomes.codes) == [FAILED]
    assert outcomes.errors[0].retryable
    assert out == KEPT
    assert store.waiting == 0


def test_every_call_can_hang() -> None:
    store = filled(Rule("hang"))
    with beside(store) as pool:
        calls: list[Future[Outcome | int | None]] = [
            pool.submit(lambda: store.put([Item("x", [b"x"])]).codes[0]),
            pool.submit(lambda: store.delete(["a"]).codes[0]),
            pool.submit(lambda: store.stat(["a"])[0]),
        ]
        listing = pool.submit(store.list)
        until(lambda: store.waiting == 4)
        store.heal()
        assert [call.result(5) for call in calls] == [FAILED, FAILED, None]
        with pytest.raises(OSError, match="planned hang"):
            listing.result(5)
    assert list(store.stat(["a", "x"])) == [SIZE, None]


def test_a_hang_may_end_by_itself() -> None:
    store = filled(Rule("hang", seconds=0.05))
    begun = time.monotonic()
    assert get(store, "a", bytearray(SIZE)) == FAILED
    assert 0.05 <= time.monotonic() - begun < 5


@pytest.mark.parametrize("how", ["garbage", "right"])
def test_a_late_write_comes_at_the_very_end(how: str) -> None:
    store = filled(Rule("late", keys="a", how="garbage" if how == "garbage" else "right"))
    late, other = bytearray(KEPT), bytearray(KEPT)
    spans = [
        Span("b", 0, SIZE, [memoryview(other)]),
        Span("a", 0, SIZE, [memoryview(late)[:7], memoryview(late)[7:]]),
    ]
    with beside(store) as pool:
        future = pool.submit(store.get, spans)
        until(lambda: store.waiting == 1)
        with pytest.raises(NotDone):
            future.result(0.05)
        assert late == KEPT  # nothing is written before the end
        assert other == content("b", SIZE)
        store.release()
        assert list(future.result(5).codes) == [OK, OK]
    assert late == (bytes([GARBAGE]) * SIZE if how == "garbage" else content("a", SIZE))


def test_a_late_write_takes_its_time() -> None:
    store = filled(Rule("late", seconds=0.1))
    out = bytearray(KEPT)
    begun = time.monotonic()
    assert get(store, "a", out) == OK
    assert 0.1 <= time.monotonic() - begun < 5
    assert set(out) == {GARBAGE}


def test_garbage_is_written_late_even_for_a_miss() -> None:
    store = filled(Rule("late", seconds=0))
    out = bytearray(KEPT)
    assert get(store, "gone", out) == MISS
    assert set(out) == {GARBAGE}


def test_close_ends_waits_and_late_writes_still_come() -> None:
    store = filled(Rule("late", how="right"))
    out = bytearray(KEPT)
    with beside(store) as pool:
        future = pool.submit(get, store, "a", out)
        until(lambda: store.waiting == 1)
        store.close()
        assert future.result(5) == OK
    assert out == content("a", SIZE)


def test_a_wait_may_survive_the_close() -> None:
    store = filled(Rule("hang", survives_close=True))
    with beside(store) as pool:
        future = pool.submit(get, store, "a", bytearray(SIZE))
        until(lambda: store.waiting == 1)
        store.close()
        assert_waits(future)
        store.released.set()  # as whoever holds the event does
        assert future.result(5) == FAILED


def test_a_wait_ends_when_its_file_goes(tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    switch.touch()
    store = filled(Rule("late", how="right", while_file=str(switch)))
    out = bytearray(KEPT)
    with beside(store) as pool:
        future = pool.submit(get, store, "a", out)
        until(lambda: store.waiting == 1)
        assert_waits(future)
        switch.unlink()
        assert future.result(5) == OK
    assert out == content("a", SIZE)
    assert get(store, "b", out) == OK
    assert store.counts["late"] == 1


def test_release_ends_waits_and_heal_ends_faults() -> None:
    store = filled(Rule("hang", verbs=("get",)))
    store.release()
    assert get(store, "a", bytearray(SIZE)) == FAILED
    store.heal()
    assert get(store, "a", bytearray(SIZE)) == OK


def test_faults_of_calls_add_up() -> None:
    store = filled(
        Rule("delay", seconds=0.03),
        Rule("delay", seconds=0.03, keys="a"),
        Rule("raise", keys="a", retryable=True),
    )
    begun = time.monotonic()
    with pytest.raises(OSError, match="planned raise") as raised:
        store.stat(["a"])
    assert time.monotonic() - begun >= 0.06
    assert getattr(raised.value, "retryable", None) is True
    assert store.counts == {"delay": 2, "raise": 1}


def test_a_call_may_raise_before_during_or_after() -> None:
    for when, there in (("before", 0), ("during", 2), ("after", 4)):
        rule = Rule("raise", verbs=("put",), when=when)  # type: ignore[arg-type]
        store = filled(rule)
        with pytest.raises(RuntimeError, match="a planned exception"):
            store.put([Item(f"k{n}", [b"x"]) for n in range(4)])
        assert sum(size is not None for size in store.stat([f"k{n}" for n in range(4)])) == there


def test_many_hangs_leave_no_thread() -> None:
    before = threading.active_count()
    store = filled(Rule("hang"))
    threads = [threading.Thread(target=store.stat, args=(["a"],)) for _ in range(20)]
    for thread in threads:
        thread.start()
    until(lambda: store.waiting == 20)
    store.close()
    for thread in threads:
        thread.join(5)
    assert threading.active_count() == before
