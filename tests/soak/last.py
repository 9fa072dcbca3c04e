"""Last: a pass over both folders when all is calm, which tells what must be there and right."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path as FilePath

from tests.soak.ledger import Ledger
from tests.soak.pool import Pool, WrongValueError
from tests.soak.universe import NAMESPACE, SPEC, Path
from unikv import Client, Topology, open_store
from unikv.backends.file import FileStore
from unikv.objects import ObjectFormat
from unikv.reports import LoadReport
from unikv.store import Span, Store
from unikv.topology import Rank

DEADLINE_S = 20.0
HEALED = 8
"""Damaged sequences that are healed, at most: each shows the same."""


class LastPass:
    """Loads all sequences as each kind of rank does, without faults; ``broken`` is what it found.

    Args:
        folder: of the soak.
        bound: of folder B.
    """

    def __init__(self, folder: FilePath, bound: int) -> None:
        self.folder = folder
        self.bound = bound
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self, a: Sequence[Path], b: Sequence[Path]) -> None:
        """Look at both folders."""
        self._sweep("A")
        ledger = Ledger(self.folder / "stored")
        stored = ledger.read()
        ledger.close()
        self.counts["A halves of pages reported stored"] = len(stored)
        with closing(open_store(f"file://{self.folder}/A")) as store:
            self._check_objects(store)
            for rank in (Topology().rank(), *Topology(tp=2).ranks()):
                self._load_reported(store, rank, a, stored)
        with closing(open_store(f"file://{self.folder}/B?max_bytes={self.bound}")) as store:
            damaged = self._load_heads(store, b)
            self._heal(store, [b[n] for n in damaged[:HEALED]])
            assert isinstance(store, FileStore)
            usage = store.usage()
            self.counts["B evicted objects"] = usage.evicted
            self.counts["B stuck"] = usage.stuck
            if usage.fault is not None or usage.stuck:
                self.broken.append(f"B: eviction says {usage}")
            wrong = abs((usage.estimate or 0) - usage.room) / self.bound
            if wrong > 0.05:
                self.broken.append(f"B: usage is reckoned wrong by {wrong:.1%}: {usage}")

    def _sweep(self, name: str) -> None:
        """Remove what killed writers left; nothing else may be there then."""
        with closing(FileStore(self.folder / name)) as store:
            self.counts[f"{name} temporary files swept"] = store.sweep()
            usage = store.usage()
            self.counts[f"{name} objects"] = usage.objects
            if usage.temporary or usage.foreign or usage.unread:
                self.broken.append(f"{name}: there is more than objects after a sweep: {usage}")

    def _check_objects(self, store: Store) -> None:
        """Read every object of A whole."""
        form = ObjectFormat.of(NAMESPACE)
        for entry in store.list():
            if entry.key.startswith("ns_"):
                continue
            data = bytearray(entry.size)
            if not store.get([Span(entry.key, 0, entry.size, (memoryview(data),))]).ok:
                self.broken.append(f"A: {entry.key} cannot be read")
            else:
                self.broken += [f"A: {one}" for one in form.check_object(entry.key, data)]

    def _load_reported(
        self, store: Store, rank: Rank, paths: Sequence[Path], stored: set[tuple[int, int]]
    ) -> None:
        """Load whatever was reported stored in A: all of it must be there."""
        heads = rank.box(SPEC).heads
        pool = Pool(range(heads.start, heads.stop), 0)
        with Client(store, NAMESPACE, rank, pool.cache, deadline_s=DEADLINE_S) as client:
            for path in paths:
                known = [all((page, half) in stored for half in pool.heads) for page in path.ids]
                for start, stop in _runs(known):
                    run = path.cut(start, stop)
                    matched, report = client.match(run.pages).pages, self._load(client, pool, run)
                    self.counts["A pages loaded"] += report.pages
                    if report.stopped is not None or matched != stop - start:
                        problem = f"{matched} of {stop - start} match, {report.stopped}"
                        self.broken.append(f"A, at the end: from page {run.ids[0]}: {problem}")
                self.counts["A pages never stored"] += known.count(False)

    def _load_heads(self, store: Store, paths: Sequence[Path]) -> list[int]:
        """Load what leads from the heads in B, and what ends it; return paths that are damaged."""
        pool = Pool(range(SPEC.kv_heads), 0)
        rank = Topology().rank()
        damaged = []
        with Client(store, NAMESPACE, rank, pool.cache, deadline_s=DEADLINE_S) as client:
            for n, path in enumerate(paths):
                matched = client.match(path.pages).pages
                report = self._load(client, pool, path.cut(0, matched + 1))
                self.counts["B pages loaded"] += report.pages
                if report.stopped is None:
                    continue
                failure = report.failed[0]
                self.counts[f"B paths with a page {failure.kind}"] += 1
                if failure.kind == "missing":
                    continue
                # A torn put leaves an object that is cut off, which a get says is an error.
                damaged.append(n)
                if failure.kind == "error" and "the object has" not in failure.reason:
                    self.broken.append(f"B, at the end: {report.stopped}")
        return damaged

    def _load(self, client: Client, pool: Pool, path: Path) -> LoadReport:
        lane = pool.take(path.ids)
        report = client.load(path.pages, lane.slots)
        try:
            lane.check(report.pages)
        except WrongValueError as error:
            self.broken.append(f"at the end: {error}")
        lane.give_back()
        return report

    def _heal(self, store: Store, paths: Sequence[Path]) -> None:
        """Save what is damaged once more, by a client that has seen it; then all of it loads."""
        pool = Pool(range(SPEC.kv_heads), 0)
        with Client(
            store, NAMESPACE, Topology().rank(), pool.cache, deadline_s=DEADLINE_S
        ) as client:
            for path in paths:
                report, start = self._load(client, pool, path), 0
                while report.stopped is not None and start < len(path.ids):
                    start += report.pages + 1
                    report = self._load(client, pool, path.cut(start, len(path.ids)))
                lane = pool.take(path.ids)
                lane.fill()
                saved = client.save(path.pages, lane.slots)
                lane.give_back()
                report = self._load(client, pool, path)
                if not saved.ok or report.stopped is not None:
                    self.broken.append(f"B does not heal: {saved.failed[:1]} {report.stopped}")
                self.counts["B paths healed"] += 1


def _runs(known: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield where runs of what is known start and stop."""
    start = 0
    for same, some in groupby(known):
        stop = start + len(list(some))
        if same:
            yield start, stop
        start = stop
