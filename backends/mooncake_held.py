"""HeldKeys: who of a process's threads writes which keys. It knows no store."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Condition


class HeldKeys:
    """Lets one thread at a time at a key."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._changed = Condition()

    @contextmanager
    def hold(self, keys: Collection[str]) -> Iterator[None]:
        """Wait until nobody holds any of the keys, and hold all of them."""
        with self._changed:
            self._changed.wait_for(lambda: self._held.isdisjoint(keys))
            self._held.update(keys)
        try:
            yield
        finally:
            with self._changed:
                self._held.difference_update(keys)
                self._changed.notify_all()
