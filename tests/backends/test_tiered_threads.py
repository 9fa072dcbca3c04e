"""A queue between two tiers whose thread cannot be started keeps what waits, and works later."""

import threading
import time
from collections.abc import Callable

import pytest

from tests.backends.tier_faults import Moody
from unikv.backends import tiered_queue
from unikv.backends.tiered import tiered
from unikv.errors import StoreError
from unikv.store import Item, Outcome
from unikv.testing import read

OK = Outcome.OK


@pytest.fixture
def fast() -> Moody:
    return Moody()


@pytest.fixture
def slow() -> Moody:
    return Moody()


def refuse(_: threading.Thread) -> None:
    """Start no thread, as at a limit of processes."""
    raise RuntimeError("can't start new thread")


def until(holds: Callable[[], bool]) -> None:
    stop = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < stop
        time.sleep(0.005)


def test_the_next_put_starts_it(fast: Moody, slow: Moody, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tiered(fast, slow, mode="write-back", wait_s=5)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert store.put([Item(key, [b"x"]) for key in "ab"]).ok
        start = time.monotonic()
        assert store.flush(0.1).waiting == 2
        assert time.monotonic() - start < 3
    assert store.put([Item("c", [b"x"])]).ok
    until(lambda: sorted(slow.held()) == ["a", "b", "c"])
    store.close()
    assert store.report().written == 3


@pytest.mark.parametrize("act", ["flush", "close"])
def test_who_waits_for_the_queue_starts_it(
    fast: Moody, slow: Moody, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Even while it waits, as soon as one can be started; here after the thread had ended."""
    monkeypatch.setattr(tiered_queue, "_IDLE_S", 0.01)
    store = tiered(fast, slow, mode="write-back", wait_s=10)
    assert store.put([Item("a", [b"x"])]).ok
    store.flush()
    until(lambda: store._moves.down._thread is None)
    real, left = threading.Thread.start, [3]

    def refuse_at_first(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] >= 0:
            refuse(thread)
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_at_first)
        assert store.put([Item("b", [b"x"])]).ok
        getattr(store, act)()
    assert store.report().written == 2
    store.close()


def test_closing_names_what_is_left(
    fast: Moody, slow: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    store = tiered(fast, slow, mode="write-back", wait_s=0.1)
    assert store.put([Item("a", [b"x"])]).ok
    with pytest.raises(StoreError, match="1 objects are in the fast tier only; 'a'"):
        store.close()


def test_a_load_goes_on_where_nothing_can_be_promoted(
    fast: Moody, slow: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.put([Item("a", [b"data"])])
    store = tiered(fast, slow)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert read(store, "a", 0, 4) == b"data"
    assert read(store, "a", 0, 4) == b"data"
    until(lambda: fast.held() == {"a": b"data"})
    store.close()
