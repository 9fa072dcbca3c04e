"""Client: save, match and load the pages of one rank's pools. It holds no policy.

save: PagedCache + page hashes → rank.box → plan_write → pack → header → store.put
load: page hashes → plan_read → store.get → verify → unpack → PagedCache
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TypeAlias

from torch import Tensor

from unikv.arena import Arena
from unikv.catalog import match_prefix
from unikv.component import Component, name_components
from unikv.damage import DamageLog
from unikv.errors import PoolError, SpecError
from unikv.hints import announce
from unikv.lane import Lane, Writers
from unikv.loading import load_pages
from unikv.namespace import Namespace
from unikv.paged import PagedCache
from unikv.pages import check_page_hash
from unikv.reports import LoadReport, Match, SaveReport
from unikv.saving import save_pages
from unikv.store import Store
from unikv.tags import BLAKE3_KEYED
from unikv.topology import Rank

Slots: TypeAlias = Tensor | Sequence[Sequence[int]]
"""int64 ``(pages, page_tokens)`` slots, or a block table ``(pages, blocks_per_page)``."""

STAGING_BYTES = 64 << 20


class Client:
    """Moves the KV of one rank between its pools and a store.

    Args:
        store: any `Store`, as `open_store` returns it.
        components: a namespace, or components by name, each with its namespace and pool.
        rank: this process's place in its deployment.
        pool: the pool, where ``components`` is a namespace.
        writers: which replica of the same box writes a page: ``"striped"`` spreads pages over
            replicas by page hash, ``"first"`` leaves all to replica 0.
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
        if tag_key is not None and all(_tags(lane) != BLAKE3_KEYED for lane in self._lanes):
            raise SpecError(
                f"a tag_key was given, but no namespace has tags={BLAKE3_KEYED!r}: nothing would "
                "be keyed"
            )
        page_bytes = sum(lane.read.page_bytes for lane in self._lanes)
        if staging_bytes < page_bytes:
            raise PoolError(
                f"staging_bytes={staging_bytes} is less than one page: want at least {page_bytes}"
            )
        self._arena = Arena(staging_bytes)
        self._verify = verify
        self._damaged = DamageLog()
        self._announced = False
        self._turn = Lock()

    def match(self, pages: Sequence[str]) -> Match:
        """Return how many leading ``pages`` this rank could load. A hint: the load decides.

        Raises:
            KeyFormatError: a text that is no page hash.
        """
        needs = [(lane.format, lane.read.chunks) for lane in self._lanes]
        return match_prefix(self._store, needs, pages, self._damaged)

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
        indices = self._index(pages, slots, write=False)
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
                    index,
                    start=start,
                    damaged=self._damaged,
                )
                for lane, index in zip(self._lanes, indices, strict=True)
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
        indices = self._index(pages, slots, write=True)
        with self._turn:
            return load_pages(
                self._lanes,
                self._store,
                self._arena,
                pages,
                indices,
                verify=self._verify,
                damaged=self._damaged,
            )

    def _index(
        self, pages: Sequence[str], slots: Slots | Mapping[str, Slots], *, write: bool
    ) -> list[Tensor]:
        """Check pages and slots before anything moves, and return each lane's index."""
        for page in pages:
            check_page_hash(page)
        if isinstance(slots, Mapping):
            by_name = dict(slots)
        elif self._several:
            raise PoolError("several components: slots must be a mapping by component name")
        else:
            by_name = {self._lanes[0].name: slots}
        if set(by_name) != {lane.name for lane in self._lanes}:
            names = [lane.name for lane in self._lanes]
            raise PoolError(f"slots for components {sorted(by_name)}: want {sorted(names)}")
        indices = []
        for lane in self._lanes:
            spec = lane.format.namespace.spec
            index = lane.pool.index(by_name[lane.name], spec.page_tokens, write=write)
            if len(index) != len(pages):
                raise PoolError(
                    f"{len(pages)} pages, but slots of component {lane.name!r} for {len(index)}"
                )
            indices.append(index)
        return indices


def _tags(lane: Lane) -> str:
    return lane.format.namespace.tags
