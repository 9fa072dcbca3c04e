"""Client: save, match and load the pages of one rank's pools. It holds no policy.

save: PagedCache + page hashes → rank.box → plan_write → pack → header → store.put
load: page hashes → plan_read → store.get → verify → unpack → PagedCache
"""

from collections.abc import Mapping, Sequence
from threading import Lock

from unikv.arena import Arena
from unikv.catalog import match_prefix
from unikv.component import Component, name_components
from unikv.errors import PoolError, SpecError
from unikv.hints import announce
from unikv.lane import Lane, Selection, Writers
from unikv.loading import load_pages
from unikv.namespace import Namespace
from unikv.paged import PagedCache
from unikv.pages import check_page_hash
from unikv.pool_index import Slots
from unikv.recent import RecentKeys
from unikv.reports import LoadReport, Match, SaveReport
from unikv.saving import save_pages
from unikv.siblings import Siblings
from unikv.store import Store
from unikv.tags import BLAKE3_KEYED
from unikv.topology import Rank

STAGING_BYTES = 64 << 20


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
        tag_key: secret for namespaces whose tags are ``"blake3_keyed"``.

    Calls may come from several threads; they take turns.

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
    ) -> None:
        if writers not in ("striped", "first"):
            raise SpecError(f"writers={writers!r}: want 'striped' or 'first'")
        self._store = store
        self._several = isinstance(components, Mapping)
        self._lanes = [
            Lane.of(name, component, rank, writers=writers, tag_key=tag_key)
            for name, component in name_components(components, pool).items()
        ]
        keyed = any(lane.format.namespace.tags == BLAKE3_KEYED for lane in self._lanes)
        if tag_key is not None and not keyed:
            raise SpecError(
                f"a tag_key was given, but no namespace has tags={BLAKE3_KEYED!r}: nothing would "
                "be keyed"
            )
        page_bytes = sum(lane.read.page_bytes for lane in self._lanes)
        if staging_bytes < page_bytes:
            raise PoolError(
                f"staging_bytes={staging_bytes} is less than one page: want at least {page_bytes}"
            )
        # All components may be read through siblings at once: beyond its own page, each may take
        # an equal share of what is left.
        more = (staging_bytes - page_bytes) // len(self._lanes)
        self._siblings = [
            Siblings(store, lane, tag_key, lane.read.page_bytes + more) if siblings else None
            for lane in self._lanes
        ]
        self._arena = Arena(staging_bytes)
        self._verify = verify
        self._damaged = RecentKeys()
        self._left = RecentKeys()
        self._announced = False
        self._turn = Lock()

    def match(self, pages: Sequence[str]) -> Match:
        """Return how many leading ``pages`` this rank could load. A hint: the load decides.

        Raises:
            KeyFormatError: a text that is no page hash.
        """
        rows = range(len(pages))
        found = [self._choose(n, pages, rows)[1] for n in range(len(self._lanes))]
        shortest = min(found, key=lambda match: match.pages)
        return shortest._replace(exact=all(match.exact for match in found))

    def save(
        self, pages: Sequence[str], slots: Slots | Mapping[str, Slots], *, start: int = 0
    ) -> SaveReport:
        """Store the pages that the store lacks and this rank is to write.

        Args:
            pages: page hashes in sequence order.
            slots: where the pages lie in the pool; by component name if there are several.
            start: position of ``pages[0]`` in its sequence, in pages.

        Raises:
            GridError: this rank owns a chunk only in part; nothing is written.
            KeyFormatError: a text that is no page hash.
            PoolError: slots that do not fit the pages or the pool; nothing is written.
        """
        if start < 0:
            raise PoolError(f"start={start}: want the position of the first page, 0 or more")
        selections = self._select(pages, slots, write=False)
        plans = [lane.write for lane in self._lanes]
        with self._turn:
            if not self._announced and any(plan.chunks for plan in plans):
                for lane in self._lanes:
                    announce(self._store, lane.format.namespace)
                self._announced = True
            reports = [
                save_pages(
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
            ]
        return SaveReport.total(reports)

    def load(self, pages: Sequence[str], slots: Slots | Mapping[str, Slots]) -> LoadReport:
        """Fill the pool with the longest whole prefix of ``pages`` that is stored and verifies.

        Args:
            pages: page hashes in sequence order.
            slots: where the pages go in the pool; by component name if there are several.

        What is stored wrong or not at all ends the prefix and is told in the report; the slots
        of the pages behind it are left as they were.

        Raises:
            KeyFormatError: a text that is no page hash.
            PoolError: slots that do not fit the pages or the pool; nothing is read.
        """
        selections = self._select(pages, slots, write=True)
        with self._turn:
            lanes = [
                self._choose(n, pages, selection.rows)[0]
                if siblings and siblings.others()
                else lane
                for n, (lane, siblings, selection) in enumerate(
                    zip(self._lanes, self._siblings, selections, strict=True)
                )
            ]
            return load_pages(
                lanes,
                self._store,
                self._arena,
                pages,
                selections,
                verify=self._verify,
                damaged=self._damaged,
            )

    def _choose(self, n: int, pages: Sequence[str], rows: Sequence[int]) -> tuple[Lane, Match]:
        """Return the lane by which to read component ``n``, and what it holds of ``pages``."""
        lane, siblings = self._lanes[n], self._siblings[n]
        if siblings:
            return siblings.longest(pages, rows, self._damaged)
        needs = [(lane.format, lane.read.chunks)]
        return lane, match_prefix(self._store, needs, pages, self._damaged)

    def _select(
        self, pages: Sequence[str], slots: Slots | Mapping[str, Slots], *, write: bool
    ) -> list[Selection]:
        """Check pages and slots before anything moves; return what each lane holds of them."""
        for page in pages:
            check_page_hash(page)
        names = sorted(lane.name for lane in self._lanes)
        if isinstance(slots, Mapping):
            by_name = dict(slots)
        elif self._several:
            raise PoolError(f"slots for components {names}: want a mapping by component name")
        else:
            by_name = {self._lanes[0].name: slots}
        if sorted(by_name) != names:
            raise PoolError(f"slots for components {sorted(by_name)}: want {names}")
        return [lane.select(by_name[lane.name], len(pages), write=write) for lane in self._lanes]
