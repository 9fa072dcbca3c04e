"""Siblings: the other grids that a component's family is stored in, as lanes to read through.

It moves no KV: it reads hint records and asks for sizes.
"""

from collections.abc import Sequence
from time import monotonic

from unikv.catalog import match_prefix
from unikv.errors import GridError, SpecError
from unikv.hints import read_hints
from unikv.lane import Lane
from unikv.recent import RecentKeys
from unikv.reports import Match
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

    def longest(
        self, pages: Sequence[str], rows: Sequence[int], damaged: RecentKeys
    ) -> tuple[Lane, Match]:
        """Return the lane that holds the longest prefix of ``pages``, its own where they tie.

        Only the pages at ``rows``, those that this rank owns, are asked for; ``Match.pages``
        counts the prefix of all.
        """
        own, best = self._own, self._match(self._own, pages, rows, damaged)
        if best.pages == len(pages):
            return own, best
        for lane in self.others():
            found = self._match(lane, pages, rows, damaged)
            if found.pages > best.pages:
                own, best = lane, found
        return own, best

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

    def _match(
        self, lane: Lane, pages: Sequence[str], rows: Sequence[int], damaged: RecentKeys
    ) -> Match:
        needs = [(lane.format, lane.read.chunks)]
        found = match_prefix(self._store, needs, [pages[row] for row in rows], damaged)
        whole = found.pages == len(rows)
        return found._replace(pages=len(pages) if whole else rows[found.pages])
