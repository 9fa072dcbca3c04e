"""HeldKeys: who of a process's threads has which keys, in order of arrival. It knows no store."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from threading import Condition


class HeldKeys:
    """Lets one thread at a time at a key, in the order in which they came.

    Who wants several keys takes all of them at once, so that no two wait in a ring; who came
    later takes none of them before, or single keys that are busy would keep a batch out for ever.
    Batches of different keys never wait for each other.
    """

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._line: list[set[str]] = []  # what those who wait want, in the order they came
        self._changed = Condition()  # guards all of it, and is told of every release

    @contextmanager
    def hold(self, keys: Iterable[str]) -> Iterator[None]:
        """Wait until nobody holds any of the keys or came before, and hold all of them."""
        wanted = set(keys)
        with self._changed:
            self._wait(wanted)
            self._held |= wanted
        try:
            yield
        finally:
            self._release(wanted)

    def _wait(self, wanted: set[str]) -> None:
        """Wait for the turn of some keys; call it with ``_changed`` held."""
        self._line.append(wanted)
        try:
            self._changed.wait_for(lambda: self._is_turn(wanted))
        finally:  # also of who was interrupted: those behind may go on
            self._line = [other for other in self._line if other is not wanted]
            if self._line:
                self._changed.notify_all()

    def _release(self, keys: Collection[str]) -> None:
        with self._changed:
            self._held.difference_update(keys)
            self._changed.notify_all()

    def _is_turn(self, wanted: set[str]) -> bool:
        if not self._held.isdisjoint(wanted):
            return False
        for ahead in self._line:
            if ahead is wanted:
                return True
            if not ahead.isdisjoint(wanted):
                return False
        return True
