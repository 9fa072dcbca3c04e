"""Worker: one process of a soak, which saves and loads in two folders until it is told to end.

``python -m tests.soak.worker FOLDER SEED WORKER LIFE [spoil]``: the folder of the soak, and which
worker this is for the how manieth time. It ends when its standard input does, and knows no other.
"""

import faulthandler
import gc
import json
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import torch

from tests.soak.calls import CALLS, PATIENCE_S, Call
from tests.soak.ledger import Ledger
from tests.soak.plans import plan_of
from tests.soak.pool import Pool, WrongValueError
from tests.soak.side import BrokenError, Side, Weather
from tests.soak.universe import NAMESPACE, SPEC, A, B, Universe
from unikv import Client, Topology, open_store
from unikv.errors import SpecError, StoreError
from unikv.store import Store
from unikv.testing_faults import faulty
from unikv.topology import Rank

B_BYTES = 48 << 20
DEADLINE_S = 0.5
AT_ONCE = 3
PACE_S = 0.03
MOST_BROKEN = 5
_METERS = (
    "unikv_io_retries_total",
    "unikv_io_process_restarts_total",
    "unikv_breaker_opens_total",
    "unikv_damaged_objects_total",
    "unikv_healed_objects_total",
    "unikv_arena_full_total",
)


class Role(NamedTuple):
    """What kind of client a worker is."""

    rank: Rank
    staging_bytes: int
    io: dict[str, str]  # by folder


def role_of(worker: int, folder: Path) -> Role:
    """Return what a worker does: two use threads, two processes; of each one has half a model.

    The processes of those two are their own for folder A, and one of the host for folder B.
    """
    rank = Topology(tp=2).rank(tp=worker // 2) if worker % 2 else Topology().rank()
    io = {"A": "process", "B": f"host:{folder}/io.sock"} if worker >= 2 else {}
    return Role(rank, 1 << 20 if worker % 2 else 6 << 20, {"A": "threads", "B": "threads", **io})


class Worker:
    """Both sides of one worker, the calls under way, and what is told to the parent."""

    def __init__(self, folder: Path, seed: str, worker: int, life: int, *, spoil: bool) -> None:
        self.folder, self.worker, self.life, self.spoil = folder, worker, life, spoil
        self.begun = float((folder / "begun").read_text())
        self.counts: Counter[str] = Counter()
        self.rng = random.Random(f"{seed} {worker} {life}")
        self.told_at = 0.0
        self.broken = 0
        self.calls: dict[Call, tuple[str, float]] = {}
        self.role = role_of(worker, folder)
        self.stores: list[Store] = []
        self.sides = [self._side("A", A), self._side("B", B)]

    def _side(self, name: str, universe: Universe) -> Side:
        bound = f"?max_bytes={B_BYTES}" if name == "B" else ""
        seed = self.rng.randrange(2**30)
        spoilt = self.spoil or name == "B"
        plan = plan_of(f"{self.folder}/storm", f"{self.folder}/told", seed, spoilt=spoilt)
        store = faulty(open_store(f"file://{self.folder}/{name}{bound}"), plan)
        self.stores.append(store)
        heads = self.role.rank.box(SPEC).heads
        pool = Pool(range(heads.start, heads.stop), seed)
        return Side(
            name,
            self._client(store, pool, self.role.io[name]),
            pool,
            universe.paths(),
            lambda: universe.come(monotonic() - self.begun),
            Ledger(self.folder / "stored") if name == "A" else None,
            Weather(self.folder / "calm"),
            self.counts,
            self.rng,
        )

    def _client(self, store: Store, pool: Pool, io: str) -> Client:
        """Return a client; the process that it is to share may just be killed."""
        for tries in range(20):
            try:
                return Client(
                    store,
                    NAMESPACE,
                    self.role.rank,
                    pool.cache,
                    io=io,
                    deadline_s=DEADLINE_S,
                    staging_bytes=self.role.staging_bytes,
                )
            except (StoreError, SpecError) as error:
                self.counts[f"client not made: {type(error).__name__}"] += 1
                if tries == 19:
                    raise
                time.sleep(0.2)
        raise AssertionError

    def run(self, ends: Callable[[], bool]) -> None:
        """Work until it is over, then end what is under way."""
        while not ends():
            if len(self.calls) < AT_ONCE:
                self._begin()
            self._go_on()
            time.sleep(self.rng.uniform(0, 2 * PACE_S) if len(self.calls) < AT_ONCE else PACE_S / 4)
        while self.calls:
            self._go_on()
            time.sleep(PACE_S / 4)

    def _begin(self) -> None:
        side = self.rng.choice(self.sides)
        [call] = self.rng.choices(list(CALLS), list(CALLS.values()))
        self.calls[call(side)] = (f"{call.__name__} in {side.name}", monotonic())

    def _go_on(self) -> None:
        for call, (name, begun) in list(self.calls.items()):
            try:
                next(call)
            except StopIteration:
                del self.calls[call]
            except Exception as error:  # noqa: BLE001 - whatever is raised breaks a promise
                del self.calls[call]
                self.tell_broken(name, error)
            else:
                if monotonic() - begun > 2 * PATIENCE_S:
                    del self.calls[call]
                    self.tell_broken(name, BrokenError(f"not over after {2 * PATIENCE_S} s"))
        if monotonic() >= self.told_at + 0.5:
            self.tell()

    def tell_broken(self, name: str, error: Exception) -> None:
        """Tell the parent of a broken promise; more than a few are not worth going on."""
        self.broken += 1
        self.counts["broken"] += 1
        what = f"{name}: {type(error).__name__}: {error}"
        if not isinstance(error, BrokenError):
            what += f" at {''.join(traceback.format_tb(error.__traceback__)[-3:])!r:.900}"
        line = json.dumps([f"{self.worker}.{self.life}", what])
        with (self.folder / "broken").open("a") as file:
            file.write(f"{line}\n")
        if self.broken >= MOST_BROKEN:
            self.tell()
            os._exit(3)

    def tell(self, **more: object) -> None:
        """Tell the parent how far this worker is; that it does is its sign of life."""
        self.told_at = monotonic()
        meters: Counter[str] = Counter()
        for side in self.sides:
            for sample in side.client.meters.read():
                if sample.name in _METERS:
                    meters[sample.name] += int(sample.value)
                elif sample.name == "unikv_io_orders_total":
                    meters[f"orders {dict(sample.labels)['outcome']}"] += int(sample.value)
        longest = {
            call: max(side.longest.get(call, 0.0) for side in self.sides)
            for call in sorted({call for side in self.sides for call in side.longest})
        }
        told = {"counts": self.counts, "meters": meters, "longest": longest, **more}
        path = self.folder / f"told-{self.worker}.{self.life}"
        path.with_suffix(".new").write_text(json.dumps(told))
        path.with_suffix(".new").rename(path)

    def close(self) -> None:
        """Close all; check that nothing is still held, and nothing was written that was free."""
        for side in self.sides:
            guard = side.client._transfers.guard
            until = monotonic() + 10
            while guard.arena.quarantined and monotonic() < until:
                guard.crew.reap()
                time.sleep(0.02)
            if guard.arena.quarantined:
                problem = f"{guard.arena.quarantined} bytes are in quarantine 10 s after the end"
                self.tell_broken(f"close {side.name}", BrokenError(problem))
            side.client.close()
            try:
                side.pool.check_idle()
            except WrongValueError as error:
                self.tell_broken(f"close {side.name}", error)
        for store in self.stores:
            store.close()


class Held(NamedTuple):
    """What this process holds."""

    descriptors: list[str]
    threads: list[str]
    children: list[str]


def held() -> Held:
    """Return what this process holds just now."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # what lists them
            found.append(str(path.readlink()))
    threads = sorted(thread.name for thread in threading.enumerate())
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return Held(sorted(found), threads, children)


def more_than(before: Held, seconds: float) -> list[str]:
    """Return what is held beside what was held before, for so many seconds at least."""
    until = monotonic() + seconds
    while True:
        gc.collect()
        more = [
            f"{name} {dict(left)}"
            for name, was, now in zip(Held._fields, before, held(), strict=True)
            if (left := Counter(now) - Counter(was))
        ]
        if not more or monotonic() > until:
            return more
        time.sleep(0.05)


def main(folder: str, seed: str, number: str, life: str, *options: str) -> None:
    """Work until standard input ends."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    before = held()
    worker = Worker(Path(folder), seed, int(number), int(life), spoil="spoil" in options)
    worker.tell()
    worker.run(lambda: bool(select.select([sys.stdin], [], [], 0)[0]))
    worker.close()
    for side in worker.sides:
        if side.ledger is not None:
            side.ledger.close()
    if more := more_than(before, 10):
        worker.tell_broken("end", BrokenError(f"left behind: {more}"))
    worker.tell(ended=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
