"""Survey: one walk over all keys of a store. It keeps a bit for each chunk, and reads little.

Memory grows with the number of pages (150 to 300 bytes each), not with objects or their bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from unikv.errors import KeyFormatError
from unikv.keys import ObjectKey
from unikv.matching import fits
from unikv.store import Entry, Store
from unikv.tools.findings import StoreFindings, Unknown
from unikv.tools.reading import BATCH_BYTES, OBJECT_LIMIT, Wanted, read_batches
from unikv.tools.roster import Known, Roster, is_hint_key
from unikv.tools.tally import LISTED, Tally, size_to_read

STRANGER_LIMIT = 4096
"""Digests without a namespace that are told apart; more are counted as "others"."""

TRIES = 4
"""Objects of a digest that are read in search of its namespace."""

Tick = Callable[[int, int], None]
"""Called now and then with the objects and bytes seen so far."""

_TICK_EVERY = 256  # objects
_BATCH = 512  # objects verified at a time, of fewer bytes than `BATCH_BYTES`
_OTHERS = "others"


def survey(
    store: Store,
    url: str,
    *,
    verify: bool = False,
    verbose: bool = False,
    tag_key: bytes | None = None,
    tick: Tick | None = None,
) -> StoreFindings:
    """Return what a store holds, from its keys and from one object of each unknown namespace.

    Args:
        store: any store that can list.
        url: what to call it.
        verify: read every object and check all of its tags.
        verbose: tell which pages lack which chunks.
        tag_key: secret of keyed tags; where it is needed and None, objects stay unverified.
        tick: progress.

    Raises:
        StoreError: the store cannot list.
        SpecError: the tag key is too short.
    """
    roster = Roster(store, tag_key)
    roster.read_hints()
    walk = _Walk(store, roster, verify, tick)
    for entry in store.list():
        walk.see(entry)
    walk.flush()
    contents = [tally.content(verbose=verbose) for tally in walk.tallies.values()]
    contents.sort(key=lambda c: (c.namespace.model, c.namespace.component, c.namespace.digest))
    return StoreFindings(
        form="store",
        url=url,
        verify=verify,
        objects=walk.objects,
        bytes=walk.bytes,
        namespaces=tuple(contents),
        unknown=tuple(
            Unknown(digest, stranger.objects, stranger.bytes, stranger.reason)
            for digest, stranger in sorted(walk.strangers.items())
        ),
        hint_records=roster.hint_records,
        damaged_hints=tuple(roster.damaged_hints),
        foreign_keys=walk.foreign_keys,
        foreign_bytes=walk.foreign_bytes,
        foreign=tuple(sorted(walk.foreign)),
    )


class _Queued(NamedTuple):
    """An object that waits to be verified."""

    tally: Tally
    key: str
    chunk: int
    size: int


@dataclass(slots=True)
class _Stranger:
    """A digest that nobody has told of yet."""

    objects: int = 0
    bytes: int = 0
    reason: str = "too many digests to look into"
    seen: list[Entry] = field(default_factory=list)  # the first of its objects


class _Walk:
    """The state of one survey."""

    def __init__(self, store: Store, roster: Roster, verify: bool, tick: Tick | None) -> None:  # noqa: FBT001
        self.tallies = {known.namespace.digest: Tally.of(known) for known in roster}
        self.strangers: dict[str, _Stranger] = {}
        self.foreign: list[str] = []
        self.foreign_keys = self.foreign_bytes = self.objects = self.bytes = 0
        self._store = store
        self._roster = roster
        self._verify = verify
        self._tick = tick
        self._queue: list[_Queued] = []
        self._queued_bytes = 0

    def see(self, entry: Entry) -> None:
        """Count one key."""
        key, size, _ = entry
        tally = self.tallies.get(key[65:97])
        cell = tally and tally.cells.get(key[98:])
        if not (tally and cell and key[64] == key[97] == "_"):
            self._see_other(entry)
            return
        page, (chunk, wanted) = key[:64], cell
        if not tally.count(page, max(size, 0)):
            self._see_foreign(entry)
            return
        self._count(size)
        whole = size_to_read(size, wanted)
        if not fits(size, wanted):
            tally.note_wrong_size(key, size, wanted)
        elif not self._verify:
            tally.pages[page] |= 1 << chunk
        elif not tally.known.verifiable or not 0 <= whole <= OBJECT_LIMIT:
            tally.pages[page] |= 1 << chunk
            tally.unverified += 1
        else:
            self._queue.append(_Queued(tally, key, chunk, whole))
            self._queued_bytes += whole
            if self._queued_bytes >= BATCH_BYTES or len(self._queue) >= _BATCH:
                self.flush()

    def flush(self) -> None:
        """Verify what is queued."""
        queue, self._queue, self._queued_bytes = self._queue, [], 0
        for i, data in read_batches(self._store, [Wanted(q.key, q.size) for q in queue]):
            if data is not None:  # otherwise deleted since it was listed
                queue[i].tally.note_read(queue[i].key, queue[i].chunk, data)

    def _see_other(self, entry: Entry) -> None:
        """Count a key that names no chunk of a namespace known so far."""
        try:
            digest = ObjectKey.parse(entry.key).namespace
        except KeyFormatError:
            if not is_hint_key(entry.key):  # those the roster has counted
                self._see_foreign(entry)
            return
        if digest in self.tallies:
            self._see_foreign(entry)  # the namespace's grid has no such chunk
        else:
            self._see_stranger(digest, entry)

    def _see_stranger(self, digest: str, entry: Entry) -> None:
        if digest not in self.strangers and len(self.strangers) >= STRANGER_LIMIT:
            self._add_to(self.strangers.setdefault(_OTHERS, _Stranger()), entry)
            return
        stranger = self.strangers.setdefault(digest, _Stranger())
        if len(stranger.seen) < TRIES:
            stranger.seen.append(entry)
            known = self._roster.learn(digest, entry.key, entry.size)
            if isinstance(known, Known):
                del self.strangers[digest]
                self.objects -= stranger.objects
                self.bytes -= stranger.bytes
                self.tallies[digest] = Tally.of(known)
                for seen in stranger.seen:
                    self.see(seen)
                return
            stranger.reason = known
        self._add_to(stranger, entry)

    def _add_to(self, stranger: _Stranger, entry: Entry) -> None:
        stranger.objects += 1
        stranger.bytes += max(entry.size, 0)
        self._count(entry.size)

    def _see_foreign(self, entry: Entry) -> None:
        self.foreign_keys += 1
        self.foreign_bytes += max(entry.size, 0)
        if len(self.foreign) < LISTED:
            self.foreign.append(entry.key)

    def _count(self, size: int) -> None:
        self.objects += 1
        self.bytes += max(size, 0)
        if self._tick and self.objects % _TICK_EVERY == 0:
            self._tick(self.objects, self.bytes)
