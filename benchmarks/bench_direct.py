"""Direct bench: cold reads past the page cache against cold reads through it, single-threaded.

Run ``python benchmarks/bench_direct.py --root DIR`` with DIR on the disk to measure. A store with
``direct``, one without and a raw loop of O_DIRECT reads take turns at the same files, whole objects
into slots that begin at a page; before each turn the files are dropped from the page cache. Ratios
are medians over the turns: ``x buffered`` of buffered time / direct time, 2.0 being twice as fast,
and ``of raw`` of raw time / direct time. CPU is that of the reading thread.
"""

import argparse
import gc
import mmap
import os
import platform
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from unikv.backends.file import FileStore
from unikv.backends.file_names import path_of
from unikv.store import Item, Span

KIB = 1024
SIZES = (64 * KIB, 256 * KIB, 1024 * KIB, 2048 * KIB)
HEADER = 1024


class Times(NamedTuple):
    """How long one turn took, in seconds."""

    wall: float
    cpu: float


class Case:
    """Objects of one size on the disk, with a slot in memory for each."""

    def __init__(self, parent: Path, size: int, total: int) -> None:
        self.size = HEADER + size
        self.count = total // size
        room = -(-self.size // 4096) * 4096
        arena = memoryview(mmap.mmap(-1, room * self.count))
        self.slots = [arena[at : at + self.size] for at in range(0, room * self.count, room)]
        keys = [f"{secrets.token_hex(32)}_{'0' * 32}_L0-15_H0" for _ in self.slots]
        self.buffered = FileStore(parent)
        self.direct = FileStore(parent, direct=True)
        self.paths = [os.fsdecode(path_of(self.direct.root, key)) for key in keys]
        self.data = os.urandom(self.size)
        self.spans = [
            Span(key, 0, self.size, [slot]) for key, slot in zip(keys, self.slots, strict=True)
        ]
        description = os.urandom(700)
        self.check(self.direct.put([Item(key, [self.data, description]) for key in keys]).ok)
        os.sync()

    def cool(self) -> None:
        """Drop the files, which are on the disk, from the page cache; clear the slots."""
        for path in self.paths:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        for slot in self.slots:
            slot[:8] = bytes(8)

    def read(self, store: FileStore) -> None:
        """Get all objects in one call."""
        self.check(store.get(self.spans).ok)

    def read_raw(self) -> None:
        """Open, read and close each file, with nothing around."""
        for path, slot in zip(self.paths, self.slots, strict=True):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            self.check(os.preadv(fd, [slot], 0) == self.size)
            os.close(fd)

    def turn(self, call: Callable[[], None]) -> Times:
        """Time one way to read all objects cold."""
        self.cool()
        wall, cpu = time.perf_counter(), time.thread_time()
        call()
        times = Times(time.perf_counter() - wall, time.thread_time() - cpu)
        self.check(all(slot[:8] == self.data[:8] for slot in self.slots))
        self.check(self.slots[-1] == self.data)
        return times

    def check(self, fine: bool) -> None:  # noqa: FBT001
        """Leave unless all went well."""
        if not fine:
            raise SystemExit(f"objects of {self.size} bytes: a read or write failed")


def measure(parent: Path, size: int, total: int, turns: int) -> None:
    """Print the figures of objects of one size."""
    case = Case(parent, size, total)
    ways: Sequence[Callable[[], None]] = (
        lambda: case.read(case.buffered),
        lambda: case.read(case.direct),
        case.read_raw,
    )
    rounds = [[case.turn(way) for way in ways] for _ in range(turns + 1)][1:]
    case.check(case.direct.direct_note is None)
    buffered, direct, _ = (
        Times(*(statistics.median(part) for part in zip(*side, strict=True)))
        for side in zip(*rounds, strict=True)
    )
    faster = statistics.median(plain.wall / past.wall for plain, past, _ in rounds)
    of_raw = statistics.median(raw.wall / past.wall for _, past, raw in rounds)
    mb, each = case.size * case.count / 1e6, 1e6 / case.count
    print(
        f"{size // KIB:>5} KiB  buffered {mb / buffered.wall:>6.0f} MB/s,"
        f" CPU {buffered.cpu * each:>6.1f} us  direct {mb / direct.wall:>6.0f} MB/s,"
        f" CPU {direct.cpu * each:>6.1f} us  x buffered {faster:.2f}  of raw {of_raw:.2f}",
        flush=True,
    )


def disk_of(path: Path) -> str:
    """Return the file system and the device that a folder lies on, and what the device is."""
    best = ("", "unknown", "")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, kind, device)
    _, kind, device = best
    queue = Path("/sys/class/block", Path(device).name, "queue")
    names = ("rotational", "logical_block_size", "read_ahead_kb")
    about = [
        f"{name} {(queue / name).read_text().strip()}" for name in names if (queue / name).exists()
    ]
    return f"{kind} on {device} ({', '.join(about)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--total-mib", type=int, default=128)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux "
        f"{platform.release()}, Python {platform.python_version()}, "
        f"{disk_of(options.root.resolve())}"
    )
    gc.disable()
    parent = Path(tempfile.mkdtemp(prefix="unikv-bench-", dir=options.root))
    try:
        for size in SIZES:
            measure(parent / str(size), size, options.total_mib << 20, options.turns)
    finally:
        shutil.rmtree(parent)


if __name__ == "__main__":
    main()
