"""Siblings: the other grids that a component's family is stored in, as lanes to read through.

It moves no KV: it reads hint records and asks for sizes.
"""

from collections.abc import Sequence
from time import monotonic

from unikv.catalog import Want, match_bundle
from unikv.errors import GridError, SpecError
from unikv.hints import read_hints
from unikv.lane import Lane
from unikv.recent import RecentKeys
from unikv.store import Store

REFRESH_S = 30.0
"""Seconds between two looks for namespaces that announced themselves; one batch of reads each."""


class Siblings:
    """Lanes of one pool: its own namespace's, and one for each sibling that this rank can read.

    Args:
        store: where hints and objects are.
        lane: the rank's own.
        tag_key: secret of keyed tags; siblings whose tags need it are left out without it.
        page_bytes: staging that a page may take; a sibling that needs more is left out.
    """

    def __init__(self, store: Store, lane: Lane, tag_key: bytes | None, page_bytes: int) -> None:
        self._store = store
        self._own = lane
        self._tag_key = tag_key
        self._page_bytes = page_bytes
        self._lanes: dict[str, Lane] = {}  # by digest
        self._looked: float | None = None

    def longest(self, pages: Sequence[str], rows: Sequence[int], damaged: RecentKeys) -> Lane:
        """Return the lane that restores most of ``pages`` by itself, its own where they tie.

        Only the pages at ``rows``, those that this rank owns, are asked for.
        """
        others = self.others()
        if not others:
            return self._own
        mine = [pages[row] for row in rows]
        best, most = self._own, self._reach(self._own, mine, damaged)
        for lane in others if most < len(mine) else ():
            reach = self._reach(lane, mine, damaged)
            if reach > most:
                best, most = lane, reach
        return best

    def others(self) -> list[Lane]:
        """Return the siblings' lanes; looks for new ones every `REFRESH_S` seconds."""
        now = monotonic()
        if self._looked is None or now - self._looked >= REFRESH_S:
            self._looked = now
            self._look()
        return list(self._lanes.values())

    def _look(self) -> None:
        own = self._own.format.namespace
        for hint in read_hints(self._store, own.family):
            digest = hint.namespace.digest
            if digest != own.digest and digest not in self._lanes:
                try:
                    lane = self._own.through(hint.namespace, self._tag_key)
                    fits = lane.read.page_bytes <= self._page_bytes
                except (GridError, SpecError):
                    continue  # token phases that do not make up ours, or tags without their key
                if fits:
                    self._lanes[digest] = lane

    def _reach(self, lane: Lane, pages: Sequence[str], damaged: RecentKeys) -> int:
        return match_bundle(
            self._store, [want_of(lane)._replace(required=True)], pages, damaged
        ).pages


def want_of(lane: Lane) -> Want:
    """Return what a lane needs to be stored of a page."""
    return Want(lane.name, lane.format, lane.read.chunks, lane.coverage, lane.required)
