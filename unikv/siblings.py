"""Siblings: the other grids that a component's family is stored in, as lanes to read through.

It moves no KV: it reads hint records and asks for sizes.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from time import monotonic
from typing import NamedTuple

from unikv.coverage import endpoints, greatest
from unikv.errors import GridError, MissingExtraError, SpecError
from unikv.hints import read_hints
from unikv.lane import Lane
from unikv.matching import Want, find_gaps, match_prefix
from unikv.namespace import Namespace
from unikv.recent import RecentKeys
from unikv.store import Records

REFRESH_S = 30.0
"""Seconds between two looks for namespaces that announced themselves; one batch of reads each."""

MOST_CHUNKS = 1024
"""Chunks a page of a sibling that is read through; who announces finer ones costs nobody time."""


class Asked(NamedTuple):
    """The pages of a call that a rank asks one component for."""

    rows: Sequence[int]  # positions of those that this rank owns, ascending
    unheld: AbstractSet[int] = frozenset()  # positions that the component has no slots for


class Siblings:
    """Lanes of one pool: its own namespace's, and one for each sibling that this rank can read.

    Args:
        lane: the rank's own.
        tag_key: secret of keyed tags; siblings whose tags need it are left out without it.
        page_bytes: staging that a page may take; a sibling that needs more is left out.
    """

    def __init__(self, lane: Lane, tag_key: bytes | None, page_bytes: int) -> None:
        self.own = lane
        self._tag_key = tag_key
        self._page_bytes = page_bytes
        self._lanes: dict[str, Lane] = {}  # by digest
        self._looked: float | None = None

    def others(self, store: Records) -> list[Lane]:
        """Return the siblings' lanes; looks for new ones every `REFRESH_S` seconds."""
        now = monotonic()
        if self._looked is None or now - self._looked >= REFRESH_S:
            self._looked = now
            self._look(store)
        return list(self._lanes.values())

    def _look(self, store: Records) -> None:
        own = self.own.format.namespace
        for hint in read_hints(store, own.family):
            digest = hint.namespace.digest
            many = chunk_count(hint.namespace) > MOST_CHUNKS
            if digest != own.digest and digest not in self._lanes and not many:
                try:
                    lane = self.own.through(hint.namespace, self._tag_key)
                    fits = lane.read.page_bytes <= self._page_bytes
                except (GridError, MissingExtraError, SpecError):
                    continue  # token phases that do not make up ours, or tags without their key
                if fits:
                    self._lanes[digest] = lane


def choose_lanes(
    store: Records,
    components: Sequence[Siblings],
    pages: Sequence[str],
    asked: Sequence[Asked],
    damaged: RecentKeys,
) -> list[Lane]:
    """Return the lane to read each component by: the one that reaches furthest, its own at a tie.

    Components of every page are chosen each by itself; then windows and state, for the endpoints
    that the others leave.
    """
    lanes = [component.own for component in components]
    choices = [[component.own, *component.others(store)] for component in components]
    sparse = [n for n, lane in enumerate(lanes) if not lane.dense]
    narrows = any(len(choices[n]) > 1 for n in sparse)
    ends = frozenset(range(len(pages) + 1))
    for n, (rows, _) in enumerate(asked):
        if lanes[n].dense and (narrows or len(choices[n]) > 1):
            mine = [pages[row] for row in rows]
            lanes[n], reach = _longest(store, choices[n], mine, damaged)
            if lanes[n].required and reach < len(mine):
                ends &= frozenset(range(rows[reach] + 1))
    # Who has no choice narrows first what the others choose for; optional ones narrow nothing.
    for n in sorted(sparse, key=lambda n: (not lanes[n].required, len(choices[n]))):
        if narrows:
            sets = [
                _restorable(store, lane, pages, asked[n], damaged, max(ends)) for lane in choices[n]
            ]
            best = max(sets, key=lambda some: greatest(ends, some))  # the first of equals
            lanes[n] = choices[n][sets.index(best)]
            ends = ends & best if lanes[n].required else ends
    return lanes


def _longest(
    store: Records, lanes: Sequence[Lane], pages: Sequence[str], damaged: RecentKeys
) -> tuple[Lane, int]:
    """Return the lane that holds most of ``pages``, the first at a tie, and how many."""
    best, most = lanes[0], -1
    for lane in lanes:
        if most < len(pages):
            reach = match_prefix(store, [want_of(lane)], pages, damaged).pages
            if reach > most:
                best, most = lane, reach
    return best, most


def _restorable(
    store: Records,
    lane: Lane,
    pages: Sequence[str],
    asked: Asked,
    damaged: RecentKeys,
    limit: int,
) -> frozenset[int]:
    """Return the endpoints up to ``limit`` that a lane's stored windows or states restore."""
    rows = [row for row in asked.rows if row < limit]
    gaps, _ = find_gaps(store, want_of(lane), [pages[row] for row in rows], damaged)
    held = set(range(limit)) - asked.unheld - {rows[gap] for gap in gaps}
    return endpoints(lane.coverage, held, limit, lane.format.namespace.spec.page_tokens)


def chunk_count(namespace: Namespace) -> int:
    """Return how many chunks a page has, without making them: a hint is anybody's."""
    groups = namespace.spec.kv_heads // namespace.heads_per_chunk
    return (len(namespace.layer_cuts) - 1) * groups * namespace.phases


def want_of(lane: Lane) -> Want:
    """Return what a lane needs to be stored of a page."""
    return Want(lane.name, lane.format, lane.read.chunks, lane.coverage, lane.required)
