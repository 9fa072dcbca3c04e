"""What is put, deleted or not told while objects move leaves neither a gap nor an older version."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.backends.tier_faults import Moody
from unikv.backends import tiered_queue
from unikv.backends.memory import MemoryStore
from unikv.backends.tiered import TieredStore, tiered
from unikv.errors import StoreError
from unikv.store import Item, Outcome, Outcomes
from unikv.testing import read

OK, EXISTED, MISS, FAILED = Outcome


@pytest.fixture
def fast() -> Moody:
    return Moody()


@pytest.fixture
def slow() -> Moody:
    return Moody()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiered_queue, "_PAUSE_S", 0.01)
    monkeypatch.setattr(tiered_queue, "_LONGEST_PAUSE_S", 0.02)


@pytest.fixture
def back(fast: Moody, slow: Moody) -> Iterator[TieredStore]:
    store = tiered(fast, slow, mode="write-back", wait_s=5)
    yield store
    fast.broken = slow.broken = fast.untold = set()
    fast.gate.set()
    slow.gate.set()
    store.flush()
    store.close()


def put(store: TieredStore, key: str, data: bytes, *, replace: bool = True) -> Outcome:
    return store.put([Item(key, [data])], replace=replace).codes[0]


def until(holds: Callable[[], bool]) -> None:
    stop = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < stop
        time.sleep(0.005)


def written(store: TieredStore) -> None:
    """Wait until all is in the slow tier."""
    assert store.flush().unwritten == {}


# A fast tier that cannot tell


@pytest.mark.parametrize("retryable", [True, False])
def test_what_the_fast_tier_cannot_tell_is_not_lost(
    back: TieredStore, fast: Moody, slow: Moody, *, retryable: bool
) -> None:
    """As of a cluster, one of whose servers is away for a moment."""
    fast.untold, fast.broken, fast.retryable = {"a"}, {"get"}, retryable
    assert back.put([Item(key, [key.encode()]) for key in "ab"]).ok
    until(lambda: back.report().waiting == 0)
    report = back.report()
    assert (sorted(report.unwritten), report.lost) == (["a", "b"], 0)
    assert slow.held() == {}
    fast.untold = fast.broken = set()
    assert back.flush().unwritten == {}
    assert slow.held() == {"a": b"a", "b": b"b"}


def test_an_object_of_untold_size_is_named(back: TieredStore, fast: Moody, slow: Moody) -> None:
    fast.untold = {"a"}
    assert put(back, "a", b"data") == OK
    report = back.flush()
    assert (list(report.unwritten), report.lost) == (["a"], 0)
    assert "its size could not be told" in report.unwritten["a"]
    fast.untold = set()
    written(back)
    assert slow.held() == {"a": b"data"}


def test_closing_tells_of_what_could_not_be_told(fast: Moody, slow: Moody) -> None:
    store = tiered(fast, slow, mode="write-back", wait_s=5)
    fast.untold = {"a"}
    put(store, "a", b"data")
    with pytest.raises(StoreError, match="1 objects are in the fast tier only; 'a'"):
        store.close()


def test_no_older_version_is_read_or_told_for_want_of_an_answer(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    put(back, "a", b"older")
    written(back)
    fast.untold = {"a"}
    assert put(back, "a", b"new") == OK
    until(lambda: back.report().waiting == 0)
    assert list(back.stat(["a"])) == [None]
    fast.broken = {"get"}
    assert read(back, "a", 0, 3) == FAILED
    fast.broken = fast.untold = set()
    assert read(back, "a", 0, 3) == b"new"
    written(back)
    assert slow.held() == {"a": b"new"}


def test_settle_does_not_forget_what_it_was_not_told_of(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    slow.broken = {"put"}
    put(back, "a", b"data")
    assert list(back.flush().unwritten) == ["a"]
    slow.broken = set()
    fast.untold = {"a"}
    report = back.settle()
    assert (list(report.unwritten), report.lost) == (["a"], 0)


def test_settle_leaves_older_versions_where_they_are(fast: Moody, slow: Moody) -> None:
    store = tiered(fast, slow, mode="write-back", wait_s=5)
    put(store, "a", b"older")
    store.flush()
    fast.broken = {"put", "delete"}
    assert put(store, "a", b"new") == OK
    assert store.report().stale == 1
    store.settle()
    assert slow.held() == {"a": b"new"}
    store.close()


# Deletes


def test_a_delete_that_failed_brings_no_older_version_back(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    put(back, "a", b"old!")
    written(back)
    slow.broken = {"put", "delete"}
    assert put(back, "a", b"new!") == OK
    assert list(back.delete(["a", "b"]).codes) == [FAILED, FAILED]
    assert read(back, "a", 0, 4) == b"new!"
    slow.broken = set()
    written(back)
    assert fast.held() == slow.held() == {"a": b"new!"}
    assert list(back.delete(["a", "b"]).codes) == [OK, MISS]
    assert fast.held() == slow.held() == {}


def test_what_another_process_deletes_while_it_is_written_stays_deleted(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    slow.slow = {"put"}
    put(back, "a", b"data")
    assert slow.reached.wait(10)  # it has been read
    other = tiered(fast, slow, mode="write-back")
    assert list(other.delete(["a"]).codes) == [OK]
    slow.gate.set()
    report = back.flush()
    assert (report.unwritten, report.lost) == ({}, 1)
    assert slow.held() == {}
    assert read(back, "a", 0, 4) == read(other, "a", 0, 4) == MISS


def test_what_another_process_writes_while_it_is_deleted_is_deleted(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    """Between the deletes of the two tiers it is in the fast one still."""
    put(back, "a", b"data")
    written(back)
    MemoryStore.delete(slow, ["a"])
    fast.slow = {"delete"}
    codes: list[Outcome] = []
    thread = threading.Thread(target=lambda: codes.extend(back.delete(["a"]).codes))
    thread.start()
    assert fast.reached.wait(10)
    slow.put([Item("a", [b"data"])])  # and looks into the fast tier, which has it
    fast.gate.set()
    thread.join(10)
    assert codes == [OK]
    assert fast.held() == slow.held() == {}


def test_what_another_process_put_anew_is_written_anew(
    fast: Moody, slow: Moody, back: TieredStore
) -> None:
    """It was removed and put again, and written by its own process, before ours removed it."""

    def put_anew(keys: Sequence[str]) -> Outcomes:
        fast.put([Item("a", [b"newer"])])
        return MemoryStore.delete(slow, keys)

    slow.delete = put_anew  # type: ignore[method-assign]
    slow.slow = {"put"}
    put(back, "a", b"data")
    assert slow.reached.wait(10)
    fast.lose("a")
    slow.gate.set()
    written(back)
    assert fast.held() == slow.held() == {"a": b"newer"}


def test_what_another_process_replaced_is_written_anew(
    fast: Moody, slow: Moody, back: TieredStore
) -> None:
    slow.slow = {"put"}
    put(back, "a", b"data")
    assert slow.reached.wait(10)
    fast.put([Item("a", [b"longer data"])])
    slow.gate.set()
    written(back)
    assert fast.held() == slow.held() == {"a": b"longer data"}


def test_what_left_the_fast_tier_while_it_waits_is_missed(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    """Be there an older version below, or what is about to be removed again."""
    put(back, "a", b"old")
    written(back)
    slow.slow = {"put"}
    put(back, "a", b"new")
    assert slow.reached.wait(10)
    fast.lose("a")
    assert read(back, "a", 0, 3) == MISS
    assert list(back.stat(["a"])) == [None]


# Puts to the fast tier do not wait for the slow one


def at_once(store: TieredStore, key: str, data: bytes) -> None:
    start = time.monotonic()
    assert put(store, key, data) == OK
    assert time.monotonic() - start < 5  # the gate of the slow tier opens after 20
    assert read(store, key, 0, len(data)) == data


@pytest.mark.parametrize("verb", ["stat", "put"])
def test_a_put_does_not_wait_for_what_is_written_down(
    back: TieredStore, fast: Moody, slow: Moody, verb: str
) -> None:
    slow.slow = {verb}
    assert put(back, "a", b"one") == OK
    assert slow.reached.wait(10)
    at_once(back, "a", b"other")
    slow.gate.set()
    written(back)
    assert fast.held() == slow.held() == {"a": b"other"}


def test_a_put_does_not_wait_for_what_is_deleted(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    put(back, "a", b"one")
    written(back)
    slow.slow = {"delete"}
    thread = threading.Thread(target=lambda: back.delete(["a"]))
    thread.start()
    assert slow.reached.wait(10)
    at_once(back, "a", b"other")
    slow.gate.set()
    thread.join(10)  # the delete ends last, so nothing is left
    assert back.flush().waiting == 0
    assert fast.held() == slow.held() == {}


@pytest.mark.parametrize("verb", ["stat", "get"])
def test_a_put_does_not_wait_for_what_is_promoted_and_is_not_overwritten(
    back: TieredStore, fast: Moody, slow: Moody, verb: str
) -> None:
    slow.put([Item("a", [b"below"])])
    slow.slow = {verb}
    back._moves.promote(["a"])
    assert slow.reached.wait(10)
    at_once(back, "a", b"new")
    slow.gate.set()
    written(back)
    until(lambda: back.report().promotions_waiting == 0)
    assert fast.held() == slow.held() == {"a": b"new"}


def test_a_put_does_not_wait_for_settle(back: TieredStore, fast: Moody, slow: Moody) -> None:
    fast.put([Item("a", [b"left by a crash"])])
    slow.slow = {"put"}
    thread = threading.Thread(target=back.settle)
    thread.start()
    assert slow.reached.wait(10)
    at_once(back, "a", b"new")
    slow.gate.set()
    thread.join(10)
    written(back)
    assert fast.held() == slow.held() == {"a": b"new"}


def test_what_is_replaced_while_it_is_read_is_not_written_in_part(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    """What was read may be of either version, and as long as the older one."""
    stored: list[bytes] = []

    def note(items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        stored.extend(bytes(item.buffers[0]) for item in items)
        return MemoryStore.put(slow, items, replace=replace)

    slow.put = note  # type: ignore[method-assign]
    fast.slow = {"get"}
    put(back, "a", b"four")
    assert fast.reached.wait(10)  # its size is known
    put(back, "a", b"longer")
    fast.gate.set()
    written(back)
    assert stored == [b"longer"]
    assert slow.held() == fast.held() == {"a": b"longer"}


def test_a_put_that_failed_does_not_keep_the_version_before_from_being_written(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    fast.slow = {"get"}
    put(back, "a", b"four")
    assert fast.reached.wait(10)
    fast.broken, slow.broken = {"put"}, {"put"}
    codes: list[Outcome] = []
    thread = threading.Thread(target=lambda: codes.append(put(back, "a", b"longer")))
    thread.start()
    until(lambda: fast.calls["put"] == 2)
    fast.gate.set()
    thread.join(10)
    assert codes == [FAILED]
    fast.broken = slow.broken = set()
    written(back)
    assert slow.held() == fast.held() == {"a": b"four"}


def test_what_goes_to_the_slow_tier_alone_is_not_overwritten_by_an_older_version(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    slow.slow = {"put"}
    put(back, "a", b"older")
    assert slow.reached.wait(10)  # it is about to be stored there
    fast.broken = {"put"}
    thread = threading.Thread(target=lambda: put(back, "a", b"new"))
    thread.start()
    until(lambda: fast.calls["put"] == 2)
    slow.gate.set()
    thread.join(10)
    written(back)
    assert slow.held() == {"a": b"new"}
    assert read(back, "a", 0, 3) == b"new"


def test_what_the_slow_tier_had_already_takes_nothing_from_the_fast_one(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    put(back, "a", b"old")
    written(back)
    slow.broken = {"put"}
    put(back, "a", b"new")
    until(lambda: back.report().waiting == 0)
    fast.broken, slow.broken = {"put"}, set()
    assert put(back, "a", b"any", replace=False) == EXISTED
    assert read(back, "a", 0, 3) == b"new"
    written(back)
    assert slow.held() == {"a": b"new"}


def test_of_two_of_one_call_the_later_stays(back: TieredStore, fast: Moody, slow: Moody) -> None:
    """Though the fast tier takes the later alone, and the slow one is given the first."""

    def take_the_last(items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        told = MemoryStore.put(fast, items[-1:], replace=replace)
        return Outcomes([FAILED, *told.codes], {0: StoreError("no room")})

    fast.put = take_the_last  # type: ignore[method-assign]
    real = back._put_below

    def put_late(items: Sequence[Item], told: Outcomes, *, replace: bool) -> Outcomes:
        written(back)  # the later is in the slow tier before the first
        return real(items, told, replace=replace)

    back._put_below = put_late  # type: ignore[method-assign, assignment]
    items = [Item("a", [b"one"]), Item("a", [b"two"])]
    assert list(back.put(items, replace=True).codes) == [OK, OK]
    written(back)
    assert fast.held() == slow.held() == {"a": b"two"}
