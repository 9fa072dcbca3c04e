"""Holds: who changes a key of two tiers now, so that nobody else does. They know no store."""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager

from unikv.backends.held_keys import HeldKeys


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


class Holds(HeldKeys):
    """Keys that are being changed, and who watches them."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: list[Watch] = []

    @contextmanager
    def of(self, keys: Iterable[str], own: Watch | None = None) -> Iterator[None]:
        """Hold some keys in this block, as `hold` does; every watch notes it, but one's ``own``."""
        wanted = set(keys)
        with self.hold(wanted):
            self._note(wanted, own)
            yield

    @contextmanager
    def free(self, keys: Iterable[str]) -> Iterator[list[str]]:
        """Hold those of some keys in this block that nobody holds or waits for, without waiting."""
        with self._changed:
            mine = set(keys).difference(self._held, *self._line)
            self._held |= mine
            self._note(mine, None)
        try:
            yield list(mine)
        finally:
            self._release(mine)

    @contextmanager
    def watch(self, keys: Iterable[str]) -> Iterator[Watch]:
        """Tell in this block who holds some keys, without holding them.

        It begins when nobody holds one of them.
        """
        watch = Watch(wanted := set(keys))
        with self._changed:
            self._wait(wanted)
            self._watches.append(watch)
        try:
            yield watch
        finally:
            with self._changed:
                self._watches.remove(watch)

    def _note(self, keys: set[str], own: Watch | None) -> None:
        with self._changed:
            for watch in self._watches:
                if watch is not own:
                    watch.note(keys)
