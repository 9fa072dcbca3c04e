"""What fails in one tier is told, and never becomes a hit, a wrong byte or a silent loss."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.backends.tier_faults import Moody
from unikv.backends import tiered_queue, tiered_rest
from unikv.backends.tiered import Mode, TieredStore, tiered
from unikv.errors import StoreError
from unikv.store import Item, Outcome
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
def through(fast: Moody, slow: Moody) -> Iterator[TieredStore]:
    store = tiered(fast, slow, wait_s=5)
    yield store
    store.close()


@pytest.fixture
def back(fast: Moody, slow: Moody) -> TieredStore:
    return tiered(fast, slow, mode="write-back", wait_s=5)


def put(store: TieredStore, key: str, data: bytes, *, replace: bool = False) -> Outcome:
    return store.put([Item(key, [data])], replace=replace).codes[0]


def until(holds: Callable[[], bool]) -> None:
    stop = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < stop
        time.sleep(0.005)


# Write-through: stored means in the slow tier


def test_what_the_slow_tier_did_not_store_is_not_stored(
    through: TieredStore, fast: Moody, slow: Moody
) -> None:
    slow.broken = {"put"}
    assert put(through, "key", b"data") == FAILED
    assert fast.held() == {}
    assert read(through, "key", 0, 4) == MISS


def test_B103_what_the_fast_tier_did_not_store_is_counted(
    through: TieredStore, fast: Moody, slow: Moody
) -> None:
    for fast.raising in (False, True):
        fast.broken = {"put"}
        assert put(through, f"key{fast.raising}", b"data") == OK
    assert slow.held() == {"keyFalse": b"data", "keyTrue": b"data"}
    report = through.report()
    assert (report.fast_errors, "is broken" in report.fast_error) == (2, True)
    assert read(through, "keyTrue", 0, 4) == b"data"


@pytest.mark.parametrize("broken", [{"put"}, {"put", "delete"}])
def test_no_older_version_is_read_when_the_fast_tier_could_not_take_the_new_one(
    through: TieredStore, fast: Moody, broken: set[str]
) -> None:
    put(through, "key", b"old")
    fast.broken = broken
    assert put(through, "key", b"new", replace=True) == OK
    assert read(through, "key", 0, 3) == b"new"
    fast.broken = set()
    assert read(through, "key", 0, 3) == b"new"
    until(lambda: through.report().stale == 0)  # promoted anew, or removed
    until(lambda: fast.held() == {"key": b"new"})
    assert read(through, "key", 0, 3) == b"new"


def test_older_versions_are_removed_once_the_fast_tier_answers(
    through: TieredStore, fast: Moody
) -> None:
    put(through, "key", b"old")
    fast.broken = {"put", "delete"}
    put(through, "key", b"new", replace=True)
    fast.broken = set()
    assert through.report().stale == 1
    assert put(through, "other", b"x") == OK
    assert through.report().stale == 0
    assert fast.held() == {"other": b"x"}


def test_what_was_there_is_promoted_not_what_was_put(
    through: TieredStore, fast: Moody, slow: Moody
) -> None:
    put(through, "key", b"first")
    fast.lose("key")
    assert put(through, "key", b"other") == EXISTED
    until(lambda: fast.held() == {"key": b"first"})
    assert slow.held() == {"key": b"first"}


# Reading


@pytest.mark.parametrize("raising", [False, True])
def test_a_broken_fast_tier_falls_through(
    through: TieredStore, fast: Moody, *, raising: bool
) -> None:
    put(through, "key", b"data")
    fast.broken, fast.raising = {"get", "stat"}, raising
    assert read(through, "key", 0, 4) == b"data"
    assert read(through, "gone", 0, 4) == MISS
    assert through.stat(["key", "gone"]) == [4, None]
    assert through.report().fast_errors >= 2


@pytest.mark.parametrize(
    ("mode", "fast_breaks", "slow_breaks", "outcome"),
    [
        ("write-through", True, False, MISS),
        ("write-through", False, True, FAILED),
        ("write-through", True, True, FAILED),
        ("write-back", True, False, FAILED),
        ("write-back", False, True, FAILED),
        ("write-back", True, True, FAILED),
    ],
)
def test_a_failure_is_never_a_hit_nor_hides_what_may_be_there(
    fast: Moody, slow: Moody, mode: Mode, *, fast_breaks: bool, slow_breaks: bool, outcome: Outcome
) -> None:
    store = tiered(fast, slow, mode=mode, wait_s=1)
    fast.broken = {"get"} if fast_breaks else set()
    slow.broken = {"get"} if slow_breaks else set()
    for slow.raising in (False, True):
        outcomes = store.get([])
        assert outcomes.ok
        assert read(store, "key", 0, 4) == outcome
    store.close()


def test_a_dead_fast_tier_is_left_alone_for_a_while(
    through: TieredStore, fast: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(tiered_rest, "monotonic", lambda: now[0])
    put(through, "key", b"old")
    fast.broken, fast.retryable = {"get", "put", "stat"}, True
    for _ in range(10):
        assert read(through, "key", 0, 3) == b"old"
    assert fast.calls["get"] == 3
    assert through.report().fast_resting
    assert put(through, "key", b"new", replace=True) == OK
    assert through.stat(["key"]) == [3]
    assert (fast.calls["put"], fast.calls["stat"]) == (1, 0)
    fast.broken = set()
    now[0] += 6
    assert read(through, "key", 0, 3) == b"new"  # and not the old one, which is there still
    assert fast.calls["get"] == 4
    assert not through.report().fast_resting


@pytest.mark.parametrize("verb", ["get", "stat", "put", "delete"])
def test_each_kind_of_call_finds_a_dead_fast_tier(
    through: TieredStore, fast: Moody, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Or a match, which only asks for sizes, would wait for it each time."""
    now = [1000.0]
    monkeypatch.setattr(tiered_rest, "monotonic", lambda: now[0])
    calls: dict[str, Callable[[int], object]] = {
        "get": lambda _: read(through, "key", 0, 4),
        "stat": lambda _: through.stat(["key"]),
        "put": lambda n: put(through, f"key{n}", b"data"),
        "delete": lambda n: through.delete([f"key{n}"]),
    }
    put(through, "key", b"data")
    fast.broken, fast.retryable, fast.raising = {verb}, True, True
    before = fast.calls[verb]
    for n in range(8):
        calls[verb](n)
    assert fast.calls[verb] == before + 3
    assert through.report().fast_resting
    now[0] += 6
    calls[verb](8)
    assert fast.calls[verb] == before + 4
    assert through.report().fast_resting


# Deleting


@pytest.mark.parametrize("tier", ["fast", "slow"])
def test_a_delete_that_one_tier_fails_has_failed(
    through: TieredStore, fast: Moody, slow: Moody, tier: str
) -> None:
    put(through, "key", b"data")
    broken = {"fast": fast, "slow": slow}[tier]
    broken.broken = {"delete"}
    outcomes = through.delete(["key", "none"])
    assert list(outcomes.codes) == [FAILED, FAILED]
    assert "is broken" in str(outcomes.errors[0])
    # Gone from the fast tier alone it is there still; gone from the slow one it is not read.
    left = {"fast": MISS, "slow": b"data"}[tier]
    assert read(through, "key", 0, 4) == left
    broken.broken = set()
    assert list(through.delete(["key", "none"]).codes) == [MISS if left == MISS else OK, MISS]
    assert (fast.held(), slow.held()) == ({}, {})


# Write-back: stored means in the fast tier


def test_what_the_fast_tier_has_no_room_for_goes_to_the_slow_one(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    put(back, "key", b"old")
    back.flush()
    fast.broken = {"put"}
    assert put(back, "key", b"new", replace=True) == OK
    assert slow.held() == {"key": b"new"}
    assert read(back, "key", 0, 3) == b"new"
    assert back.report().fast_errors == 1
    slow.broken = {"put"}
    assert put(back, "both", b"x") == FAILED
    fast.broken = slow.broken = set()
    back.close()


def test_B103_what_the_slow_tier_refuses_is_named_and_tried_again(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    slow.broken = {"put"}
    assert put(back, "key", b"data") == OK
    report = back.flush()
    assert report.unwritten == {"key": "it: it is broken"} or "broken" in report.unwritten["key"]
    assert (report.waiting, report.written) == (0, 0)
    assert read(back, "key", 0, 4) == b"data"
    slow.broken = set()
    report = back.flush()
    assert (report.unwritten, report.written) == ({}, 1)
    assert slow.held() == fast.held() == {"key": b"data"}
    back.close()


def test_what_may_pass_is_tried_again_by_itself(back: TieredStore, slow: Moody) -> None:
    slow.broken, slow.retryable = {"put"}, True
    put(back, "key", b"data")
    until(lambda: slow.calls["put"] >= 2)
    slow.broken = set()
    until(lambda: slow.held() == {"key": b"data"})
    back.close()
    assert back.report().written == 1


def test_B103_a_full_queue_is_counted_and_named(fast: Moody, slow: Moody) -> None:
    store = tiered(fast, slow, mode="write-back", queue_objects=3, wait_s=5)
    slow.slow = {"put"}
    put(store, "first", b"x")
    assert slow.reached.wait(10)  # it is being written: it waits no more
    codes = store.put([Item(f"key{i}", [b"x"]) for i in range(5)]).codes
    assert list(codes) == [OK] * 5
    report = store.report()
    assert (report.waiting, sorted(report.unwritten)) == (4, ["key3", "key4"])
    assert set(report.unwritten.values()) == {"too many objects wait to be written"}
    slow.gate.set()
    store.flush()
    report = store.flush()
    assert (report.waiting, report.unwritten, len(slow.held())) == (0, {}, 6)
    store.close()


def test_what_leaves_the_fast_tier_before_it_is_written_is_counted(
    back: TieredStore, fast: Moody, slow: Moody
) -> None:
    slow.slow = {"put"}
    put(back, "first", b"x")
    assert slow.reached.wait(10)
    put(back, "key", b"data")
    fast.lose("key")
    slow.gate.set()
    assert back.flush().lost == 1
    back.close()


def test_close_waits_no_longer_than_it_may_and_tells_what_is_left(fast: Moody, slow: Moody) -> None:
    store = tiered(fast, slow, mode="write-back", wait_s=0.2)
    slow.slow = {"put"}
    put(store, "key", b"data")
    assert slow.reached.wait(10)
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"1 objects are in the fast tier only; 'key': .* closed"):
        store.close()
    assert time.monotonic() - start < 3
    store.close()  # once is enough
    assert list(store.report().unwritten) == ["key"]
    slow.gate.set()
    with pytest.raises(StoreError, match="closed"):
        store.flush()


def test_a_crash_of_the_thread_is_told(back: TieredStore, slow: Moody) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of a store")

    slow.put = bug  # type: ignore[method-assign, assignment]
    put(back, "key", b"data")
    assert back.flush().unwritten == {"key": "ZeroDivisionError: of a store"}
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        back.close()
