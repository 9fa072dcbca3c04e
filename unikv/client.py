"""Client: save, match and load the pages of one rank's pools. It holds no policy.

save: PagedCache + page hashes → rank.box → plan_write → pack → header → store.put
load: page hashes → plan_read → store.get → verify → unpack → PagedCache
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from threading import Lock
from time import monotonic

from unikv.arena import Arena
from unikv.bundle import model_layers
from unikv.catalog import match_bundle
from unikv.component import Component, name_components
from unikv.draft import Drafter
from unikv.errors import PoolError, SpecError
from unikv.hints import announce
from unikv.lane import Lane, Selection, Writers
from unikv.loading import load_pages
from unikv.namespace import Namespace
from unikv.paged import PagedCache
from unikv.pages import check_pages
from unikv.pool_index import Slots
from unikv.pool_sharing import check_blocks, find_shared
from unikv.reading import Leg, Reader
from unikv.recent import RecentKeys
from unikv.reports import LoadReport, Match, SaveReport
from unikv.saving import save_pages
from unikv.siblings import REFRESH_S, Asked, Siblings, choose_lanes, want_of
from unikv.sources import derive_table, follow_sources
from unikv.store import Store
from unikv.tags import BLAKE3_KEYED
from unikv.topology import Rank

STAGING_BYTES = 64 << 20

MAX_PAGE_INDEX = 2**32 - 1
"""Pages before the end of the longest sequence that a header can count."""


class Client:
    """Moves the KV of one rank between its pools and a store.

    Args:
        store: any `Store`, as `open_store` returns it.
        components: a namespace, or components by name, each with its namespace and pool.
        rank: this process's place in its deployment.
        pool: the pool, where ``components`` is a namespace; a `Component` says more.
        writers: which replica of the same box writes a page: ``"striped"`` spreads pages over
            replicas by page hash, ``"first"`` leaves all to replica 0.
        siblings: read through another grid of the same family where it holds a longer prefix.
        verify: check every byte that is read before it reaches the pool.
        staging_bytes: host memory for staging; a larger transfer goes by windows of pages.
        tag_key: secret for namespaces whose tags are ``"blake3_keyed"``. With a wrong one every
            object looks damaged, and saves replace what was loaded.
        drafters: the deployment's speculative drafters, by the components that hold their state.

    Calls may come from several threads; saves and loads take turns.

    Raises:
        PoolError: a pool that does not hold the rank's box, or staging smaller than one page.
        SpecError: components without a namespace each, or a missing ``tag_key``.
        TopologyError: sizes that do not fit the model.
    """

    def __init__(
        self,
        store: Store,
        components: Namespace | Mapping[str, Component],
        rank: Rank,
        pool: PagedCache | None = None,
        *,
        writers: Writers = "striped",
        siblings: bool = True,
        verify: bool = True,
        staging_bytes: int = STAGING_BYTES,
        tag_key: bytes | None = None,
        drafters: Sequence[Drafter] = (),
    ) -> None:
        if writers not in ("striped", "first"):
            raise SpecError(f"writers={writers!r}: want 'striped' or 'first'")
        if isinstance(store, str):
            raise SpecError("store of type str: want a store, as open_store(url) returns it")
        if not isinstance(rank, Rank):
            raise SpecError(f"rank {rank!r:.80}: want a rank, such as Topology(tp=2).rank(tp=1)")
        if type(staging_bytes) is not int:
            raise PoolError(f"staging_bytes={staging_bytes!r:.80}: want a whole number of bytes")
        self._store = store
        self._several = isinstance(components, Mapping)
        named = name_components(components, pool, drafters)
        layers = model_layers(named, drafters)
        self._lanes = [
            Lane.of(name, component, rank, model_layers=layers, writers=writers, tag_key=tag_key)
            for name, component in named.items()
        ]
        keyed = any(lane.format.namespace.tags == BLAKE3_KEYED for lane in self._lanes)
        if tag_key is not None and not keyed:
            raise SpecError(
                f"a tag_key was given, but no namespace has tags={BLAKE3_KEYED!r}: nothing would "
                "be keyed"
            )
        self._shared = find_shared(self._lanes)
        least = _least_staging(self._lanes)
        if staging_bytes < least:
            raise PoolError(
                f"staging_bytes={staging_bytes} is less than one page: want at least {least}"
            )
        # Every component may be read through a sibling at once: each has what is left, shared.
        spare = (staging_bytes - least) // len(self._lanes)
        self._siblings = [
            Siblings(store, lane, tag_key, lane.read.page_bytes + spare // lane.window_pages)
            for lane in self._lanes
            if siblings
        ]
        self._arena = Arena(staging_bytes)
        self._verify = verify
        self._damaged = RecentKeys()
        self._left = RecentKeys()
        self._announce_at = 0.0  # when to see to the hint records again
        self._turn = Lock()

    def match(self, pages: Sequence[str]) -> Match:
        """Return how many leading ``pages`` this rank could load. A hint: the load decides.

        Raises:
            KeyFormatError: a text that is no page hash.
        """
        check_pages(pages)
        lanes = self._choose(pages, [Asked(range(len(pages)))] * len(self._lanes))
        return match_bundle(self._store, [want_of(lane) for lane in lanes], pages, self._damaged)

    def save(
        self,
        pages: Sequence[str],
        slots: Slots | int | Mapping[str, Slots | int],
        *,
        start: int = 0,
        endpoints: Iterable[int] | None = None,
    ) -> SaveReport:
        """Store the pages that the store lacks and this rank is to write.

        Args:
            pages: page hashes in sequence order.
            slots: where the pages lie in the pool; by component name if there are several. A row
                of -1 is a page that the component does not hold, as behind a sliding window. A
                state's slot may stand for all pages where ``endpoints`` leave one of them.
            start: position of ``pages[0]`` in its sequence, in pages.
            endpoints: pages (1 is behind the first of the call) at which the sequence shall be
                restorable; of windows and state only what these need is stored. None: all.

        Raises:
            GridError: this rank owns a chunk only in part; nothing is written.
            KeyFormatError: a text that is no page hash.
            PoolError: slots that do not fit the pages or the pool; nothing is written.
            SpecError: an endpoint that the pages do not reach; nothing is written.
        """
        if type(start) is not int or not 0 <= start <= MAX_PAGE_INDEX - len(pages):
            raise PoolError(
                f"start={start!r:.40}: want the position of the first page, a whole number from 0 "
                f"to {MAX_PAGE_INDEX - len(pages)}"
            )
        if endpoints is not None:
            endpoints = list(endpoints)  # asked for by each component
        selections = [
            lane.to_store(selection, endpoints, len(pages))
            for lane, selection in zip(
                self._lanes, self._select(pages, slots, write=False), strict=True
            )
        ]
        plans = [lane.write for lane in self._lanes]
        with self._turn:
            if any(plan.chunks for plan in plans) and monotonic() >= self._announce_at:
                slots_taken = [announce(self._store, lane.format.namespace) for lane in self._lanes]
                late = None in slots_taken  # all slots are taken, or the store failed
                self._announce_at = monotonic() + REFRESH_S if late else inf
            reports = {
                lane.name: save_pages(
                    lane,
                    self._store,
                    self._arena,
                    pages,
                    selection,
                    start=start,
                    damaged=self._damaged,
                    left=self._left,
                )
                for lane, selection in zip(self._lanes, selections, strict=True)
            }
        return SaveReport.total(reports)

    def load(
        self, pages: Sequence[str], slots: Slots | int | Mapping[str, Slots | int]
    ) -> LoadReport:
        """Fill the pools with the greatest prefix of ``pages`` that is stored and verifies.

        Args:
            pages: page hashes in sequence order.
            slots: where the pages go in the pool; by component name if there are several. A row
                of -1 is a page that the component has no place for, as outside a sliding window.
                For state one slot may stand for all pages: only one state is restored.

        What is stored wrong or not at all ends the prefix and is told in the report; the slots
        of the pages behind it are left as they were. (Where the load is larger than its staging
        and windows or state end the prefix early, pages of other components between the two may
        have been written: the report's ``pages`` is what counts.)

        Raises:
            KeyFormatError: a text that is no page hash.
            PoolError: slots that do not fit the pages or the pool; nothing is read.
        """
        selections = self._select(pages, slots, write=True)
        with self._turn:
            lanes = self._choose(pages, [Asked(some.rows, some.unheld) for some in selections])
            legs = [Leg(*leg) for leg in zip(lanes, selections, strict=True)]
            reader = Reader(self._store, self._arena, pages, self._verify, self._damaged)
            return load_pages(reader, legs)

    def _choose(self, pages: Sequence[str], asked: Sequence[Asked]) -> list[Lane]:
        """Return for each component the lane to read it by: its own, or a sibling's."""
        if not self._siblings:
            return self._lanes
        return choose_lanes(self._store, self._siblings, pages, asked, self._damaged)

    def _select(
        self, pages: Sequence[str], slots: Slots | int | Mapping[str, Slots | int], *, write: bool
    ) -> list[Selection]:
        """Check pages and slots before anything moves; return what each lane moves of them."""
        check_pages(pages)
        lanes = {lane.name: lane for lane in self._lanes}
        own = sorted(name for name, lane in lanes.items() if lane.component.source is None)
        if isinstance(slots, Mapping):
            tables = dict(slots)
        elif self._several and len(own) > 1:
            raise PoolError(f"slots for components {own}: want a mapping by component name")
        else:
            tables = {own[0]: slots}
        if sorted(tables) != own:
            raise PoolError(f"slots for components {sorted(tables)}: want {own}")
        for lane in follow_sources(self._lanes):
            source = lanes[str(lane.component.source)]
            tables[lane.name] = derive_table(lane, source, tables[source.name])
        selections = [lanes[n].select(tables[n], len(pages), write=write) for n in lanes]
        check_blocks(self._lanes, selections, self._shared)
        return selections


def _least_staging(lanes: Sequence[Lane]) -> int:
    """Return the bytes that the smallest load takes: one page, and all of each window."""
    return sum(lane.read.page_bytes * lane.window_pages for lane in lanes)
