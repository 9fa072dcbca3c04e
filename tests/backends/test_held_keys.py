"""Who waits for several keys gets them in its turn, however busy each of them is."""

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

import pytest

from unikv.backends.held_keys import HeldKeys
from unikv.backends.tiered_holds import Holds

Hold = Callable[[Collection[str]], AbstractContextManager[None]]


@pytest.fixture(params=["mooncake", "tiered"])
def hold(request: pytest.FixtureRequest) -> Hold:
    return HeldKeys().hold if request.param == "mooncake" else Holds().of


class Taker:
    """A thread that holds keys until it is told to let go."""

    def __init__(self, hold: Hold, keys: str) -> None:
        self.has = threading.Event()
        self._let_go = threading.Event()
        self._thread = threading.Thread(target=self._take, args=[hold, set(keys)], daemon=True)
        self._thread.start()

    def waits(self) -> bool:
        return not self.has.wait(0.05)

    def let_go(self) -> None:
        assert self.has.wait(10)
        self._let_go.set()
        self._thread.join(10)

    def _take(self, hold: Hold, keys: set[str]) -> None:
        with hold(keys):
            self.has.set()
            assert self._let_go.wait(20)


def test_a_batch_is_not_passed_by_who_came_later(hold: Hold) -> None:
    first = Taker(hold, "a")
    assert first.has.wait(10)
    batch = Taker(hold, "abc")
    assert batch.waits()
    later = Taker(hold, "b")  # which nobody holds: but the batch was here before
    assert later.waits()
    other = Taker(hold, "d")
    assert other.has.wait(10)
    first.let_go()
    assert batch.has.wait(10)
    assert later.waits()
    batch.let_go()
    assert later.has.wait(10)
    later.let_go()
    other.let_go()


def test_a_batch_gets_busy_keys(hold: Hold) -> None:
    stop = threading.Event()
    held: set[str] = set()

    def work(key: str) -> None:
        while not stop.is_set():
            with hold({key}):
                assert key not in held
                held.add(key)
                stop.wait(0.002)
                held.remove(key)

    threads = [threading.Thread(target=work, args=[key], daemon=True) for key in "abcabcabc"]
    for thread in threads:
        thread.start()
    for _ in range(10):
        batch = Taker(hold, "abc")
        assert batch.has.wait(5)
        assert not held
        batch.let_go()
    stop.set()
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize("kind", [HeldKeys, Holds])
def test_who_is_interrupted_stands_in_nobodys_way(
    monkeypatch: pytest.MonkeyPatch, kind: type[HeldKeys] | type[Holds]
) -> None:
    def interrupt(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    holder = kind()
    hold = holder.hold if isinstance(holder, HeldKeys) else holder.of
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt), hold({"a"}):
            pytest.fail("nobody said that it is its turn")
    Taker(hold, "ab").let_go()


def test_what_is_held_without_waiting_is_what_nobody_waits_for() -> None:
    holds = Holds()
    first = Taker(holds.of, "a")
    assert first.has.wait(10)
    batch = Taker(holds.of, "ab")
    assert batch.waits()
    with holds.free("abc") as keys:
        assert keys == ["c"]
    first.let_go()
    batch.let_go()


def test_a_watch_notes_who_held_its_keys_since() -> None:
    holds = Holds()
    with holds.of("a"):
        pass
    with holds.watch("abc") as watch, holds.watch("bc") as other:
        with holds.of("bx"), holds.of("c", own=watch):
            pass
        assert [key for key in "abcx" if key in watch.touched] == ["b"]
        assert [key for key in "abcx" if key in other.touched] == ["b", "c"]
    with holds.watch("abc") as watch:
        assert "b" not in watch.touched


def test_a_watch_begins_when_nobody_holds_its_keys() -> None:
    """Or it would not note who changes one of them all the while."""
    holds = Holds()
    first = Taker(holds.of, "a")
    assert first.has.wait(10)
    begun = threading.Event()

    def begin() -> None:
        with holds.watch("ab"):
            begun.set()

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    assert not begun.wait(0.05)
    first.let_go()
    assert begun.wait(10)
    thread.join(10)
