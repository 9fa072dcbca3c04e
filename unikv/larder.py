"""Larder: pages that prefetches brought into the arena, until a load takes them. No I/O.

It holds what nobody has asked for yet: where room is wanted for a save or a load, it gives way.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import RLock
from time import monotonic
from typing import NamedTuple, TypeAlias

from unikv.arena import Slot
from unikv.kernels.staging import Staging

KEEP_S = 60.0
"""Seconds that a page is kept for a load; a request that waited longer was given up."""


class Shelf(NamedTuple):
    """Pages of one component that lie in one slot."""

    slot: Slot
    staging: Staging  # of its pages


Held: TypeAlias = dict[int, tuple[Shelf, int]]
"""By position in a call's pages: the shelf that a page lies on, and its row there."""


def give_back(held: Iterable[Held]) -> None:
    """End the holds on slots that came with pages that were taken."""
    for pages in held:
        for shelf, _ in pages.values():
            shelf.slot.release()


class Larder:
    """Prefetched, verified pages by component and namespace; the oldest goes first."""

    def __init__(self) -> None:
        self._lock = RLock()  # a signal handler may clear it amid any of these calls
        self._pages: OrderedDict[tuple[str, str], tuple[Shelf, int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def store(self, lane: str, pages: Sequence[str], shelf: Shelf) -> None:
        """Keep the pages of a shelf, row by row; each holds the slot."""
        now = monotonic()
        with self._lock:
            for row, page in enumerate(pages):
                if (lane, page) not in self._pages:
                    shelf.slot.hold()
                    self._pages[lane, page] = (shelf, row, now)

    def holds(self, lane: str, page: str) -> bool:
        """Tell whether a page is there."""
        return (lane, page) in self._pages

    def take(self, lane: str, pages: Sequence[str], rows: Sequence[int]) -> Held:
        """Hand over those of ``pages`` at ``rows`` that are there.

        Each comes with one hold on its slot, which the taker releases.
        """
        found: Held = {}
        if not self._pages:
            return found
        with self._lock:
            for row in rows:
                if (entry := self._pages.pop((lane, pages[row]), None)) is not None:
                    found[row] = entry[:2]
        return found

    def shed(self, *, stale_only: bool = False) -> bool:
        """Let go of the oldest slot's pages; return whether there was anything to let go."""
        with self._lock:
            first = next(iter(self._pages.values()), None)
            if first is None or (stale_only and monotonic() - first[2] < KEEP_S):
                return False
            slot = first[0].slot
            keys = [key for key, entry in self._pages.items() if entry[0].slot is slot]
            gone = [key for key in keys if self._pages.pop(key, None) is not None]
        for _ in gone:
            slot.release()
        return True

    def clear(self) -> None:
        """Let go of everything."""
        while self.shed():
            pass
