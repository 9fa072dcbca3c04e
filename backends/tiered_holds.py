"""Holds: who changes a key of two tiers now, so that nobody else does. They know no store."""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from threading import Condition


class Watch:
    """Keys that somebody reads, and those of them that somebody else has held since."""

    def __init__(self, keys: set[str]) -> None:
        self._keys = keys
        self._touched: set[str] = set()

    @property
    def touched(self) -> Container[str]:
        """The keys that somebody held since; it grows."""
        return self._touched

    def note(self, keys: set[str]) -> None:
        """Take note of keys that somebody holds now."""
        self._touched |= self._keys & keys


class Holds:
    """Keys that are being changed. Batches of different keys never wait for each other.

    All keys of a batch are taken at once or none, so that two batches cannot wait in a ring; and
    in the order in which the batches came, so that busy single keys never keep a batch out.
    """

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._line: list[set[str]] = []  # what those who wait want, in the order they came
        self._watches: list[Watch] = []
        self._change = Condition()

    @contextmanager
    def of(self, keys: Iterable[str], own: Watch | None = None) -> Iterator[None]:
        """Hold some keys in this block, once nobody else holds one of them or waited before.

        Every watch takes note of it, except one's ``own``.
        """
        wanted = set(keys)
        with self._change:
            self._wait(wanted)
            self._take(wanted, own)
        try:
            yield
        finally:
            self._release(wanted)

    @contextmanager
    def free(self, keys: Iterable[str]) -> Iterator[list[str]]:
        """Hold those of some keys in this block that nobody holds or waits for, without waiting."""
        with self._change:
            mine = set(keys).difference(self._held, *self._line)
            self._take(mine, None)
        try:
            yield list(mine)
        finally:
            self._release(mine)

    @contextmanager
    def watch(self, keys: Iterable[str]) -> Iterator[Watch]:
        """Tell in this block who holds some keys, without holding them.

        It begins when nobody holds one of them.
        """
        wanted = set(keys)
        watch = Watch(wanted)
        with self._change:
            self._wait(wanted)
            self._watches.append(watch)
        try:
            yield watch
        finally:
            with self._change:
                self._watches.remove(watch)

    def _wait(self, wanted: set[str]) -> None:
        self._line.append(wanted)
        try:
            self._change.wait_for(lambda: self._is_turn(wanted))
        finally:  # also of who was interrupted: those behind may go on
            self._line = [other for other in self._line if other is not wanted]
            if self._line:
                self._change.notify_all()

    def _is_turn(self, wanted: set[str]) -> bool:
        if not self._held.isdisjoint(wanted):
            return False
        for ahead in self._line:
            if ahead is wanted:
                return True
            if not ahead.isdisjoint(wanted):
                return False
        return True

    def _take(self, keys: set[str], own: Watch | None) -> None:
        self._held |= keys
        for watch in self._watches:
            if watch is not own:
                watch.note(keys)

    def _release(self, keys: set[str]) -> None:
        with self._change:
            self._held -= keys
            self._change.notify_all()
