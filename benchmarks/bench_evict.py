"""Evict bench: what eviction adds to a writer's latency at steady state, against no bound.

Run ``python benchmarks/bench_evict.py --root DIR --objects 100000`` with DIR on the disk to measure
(of 256 KiB, they take 27 to 45 GB; four minutes). Two stores of as many objects, one at its bound
and one without, are written to in turns by one thread that never pauses: each put of the first
makes somebody remove an object, and a turn is long enough for eviction to begin and end. Pairs of
turns go on for ``--seconds``; which store is first alternates. Before each turn eviction comes to
rest and the disk is synced, so that no turn pays for another. The store without a bound loses its
oldest objects, too, between turns: a file system is slower where inodes were freed a moment ago.

What is there at first has its blocks, but was not written: as with a bound larger than memory, the
oldest objects are not in the page cache. ``added`` is the median over pairs of the ratio less 1,
between brackets the interval that holds it in 95 of 100 resamples of the pairs (a bootstrap). CPU
is that of the writing thread, which other processes hardly disturb.
"""

import argparse
import gc
import os
import platform
import random
import secrets
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unikv.backends.file import FileStore
from unikv.backends.file_names import path_of
from unikv.backends.file_size import room_of
from unikv.store import Item

KIB = 1024
TARGET = 0.05
RESAMPLES = 4000


class Turn(NamedTuple):
    """Puts in a row."""

    keys: list[str]
    latencies: list[float]  # seconds each, ascending
    cpu: float  # seconds a put

    def figures(self) -> list[float]:
        """Return mean, median, 99th percentile and CPU of a put, in seconds."""
        ranks = (len(self.latencies) // 2, len(self.latencies) * 99 // 100)
        return [statistics.fmean(self.latencies), *(self.latencies[r] for r in ranks), self.cpu]


def new_key() -> str:
    return f"{secrets.token_hex(32)}_{'0' * 32}_L0-15_H0"


def write(store: FileStore, data: bytes, count: int) -> Turn:
    """Put objects one by one, as fast as the store takes them."""
    latencies: list[float] = []
    keys = [new_key() for _ in range(count)]
    items = [[Item(key, [data])] for key in keys]
    cpu = time.thread_time()
    for item in items:
        began = time.perf_counter()
        outcomes = store.put(item)
        latencies.append(time.perf_counter() - began)
        if not outcomes.ok:
            raise SystemExit(f"put failed: {outcomes.errors}")
    cpu = time.thread_time() - cpu
    return Turn(keys, sorted(latencies), cpu / count)


def fill(store: FileStore, size: int, count: int) -> list[str]:
    """Lay out objects with blocks, but without bytes; return their keys."""
    keys = [new_key() for _ in range(count)]
    for key in keys:
        path = path_of(store.root, key)
        for attempt in range(2):
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
                break
            except FileNotFoundError:
                if attempt:
                    raise
                Path(os.fsdecode(path)).parent.mkdir(parents=True, exist_ok=True)
        os.posix_fallocate(fd, 0, size)
        os.close(fd)
    return keys


def rest(store: FileStore, bound: int) -> None:
    """Wait until eviction has nothing left to do, and the disk neither."""
    assert store._bound  # noqa: SLF001 - the ledger's own word, without a count of all files
    ledger = store._bound.keeper().ledger  # noqa: SLF001
    until = time.monotonic() + 20
    while ledger.read().bytes > bound * 98 // 100 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.05)
    os.sync()


def disk_of(path: Path) -> str:
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, f"{kind} on {device}")
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--kib", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=150, help="of turns")
    parser.add_argument("--puts", type=int, help="in a turn; by default 1.1 percent of objects")
    options = parser.parse_args()
    puts = options.puts or max(options.objects * 11 // 1000, 100)
    size = options.kib * KIB
    data = os.urandom(size)
    bound = room_of(size) * options.objects
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Linux {platform.release()}, Python {platform.python_version()}, "
        f"{disk_of(options.root.resolve())}; {options.objects} objects of {options.kib} KiB"
    )
    parent = Path(tempfile.mkdtemp(prefix="unikv-bench-", dir=options.root))
    free = FileStore(parent / "free")
    bounded = FileStore(parent / "bounded", max_bytes=bound)
    pairs: list[tuple[Turn, Turn]] = []
    try:
        oldest = deque(fill(free, 4 * KIB, options.objects))
        fill(bounded, size, options.objects)
        write(bounded, data, puts)  # it warms up, and is at its bound
        gc.disable()
        until = time.monotonic() + options.seconds
        while time.monotonic() < until:
            took: dict[FileStore, Turn] = {}
            for store in (free, bounded) if len(pairs) % 2 else (bounded, free):
                rest(bounded, bound)
                took[store] = write(store, data, puts)
                if store is free:
                    oldest += took[free].keys
                    free.delete([oldest.popleft() for _ in range(puts)])
            pairs.append((took[bounded], took[free]))
        tell(pairs)
        usage = bounded.usage()
        print(f"evicted {usage.evicted}, usage {usage.room / bound:.3f} of the bound", flush=True)
    finally:
        bounded.close()
        shutil.rmtree(parent)


def tell(pairs: Sequence[tuple[Turn, Turn]]) -> None:
    """Print the figures."""
    print(f"{len(pairs)} pairs of turns of {len(pairs[0][0].keys)} puts each")
    for place, name in enumerate(("mean", "p50", "p99", "CPU")):
        each = [(first.figures()[place], second.figures()[place]) for first, second in pairs]
        first, second = (statistics.median(side) * 1e6 for side in zip(*each, strict=True))
        ratios = [one / other - 1 for one, other in each]
        low, high = interval(ratios)
        verdict = "within" if high <= TARGET else "beyond" if low > TARGET else "not told from"
        print(
            f"{name:>5}  bounded {first:8.1f} us  no bound {second:8.1f} us  "
            f"added {statistics.median(ratios):+.1%} [{low:+.1%}, {high:+.1%}]  {verdict} 5 %"
        )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the median in 95 of 100 resamples."""
    rng = random.Random(0)  # noqa: S311 - not for secrets
    medians = sorted(
        statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[RESAMPLES // 40], medians[-RESAMPLES // 40]


if __name__ == "__main__":
    main()
