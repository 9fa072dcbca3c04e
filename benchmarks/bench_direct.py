"""Direct bench: cold reads past the page cache against cold reads through it, single-threaded.

Run ``python benchmarks/bench_direct.py --root DIR`` with DIR on the disk to measure. Both stores
read the same files, whole objects into slots that begin at a page, in turns; before each turn the
files are dropped from the page cache. ``ratio`` is the median over pairs of turns of buffered time
/ direct time: 2.0 means twice as fast. Writes are told beside it, with the time that the disk takes
to have them (fsync) and without.
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

from unikv.backends.file import FileStore
from unikv.backends.file_names import path_of
from unikv.store import Item, Span

KIB = 1024
SIZES = (64 * KIB, 256 * KIB, 1024 * KIB, 2048 * KIB)
HEADER = 1024


def disk_of(path: Path) -> str:
    """Return the file system and the device that a folder lies on, and what the device is."""
    best = ("", "unknown", "")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, kind, device)
    _, kind, device = best
    queue = Path("/sys/class/block", Path(device).name, "queue")
    about = []
    for name in ("rotational", "logical_block_size", "read_ahead_kb"):
        if (queue / name).exists():
            about.append(f"{name} {(queue / name).read_text().strip()}")
    return f"{kind} on {device} ({', '.join(about)})"


def cool(paths: Sequence[bytes]) -> None:
    """Drop files, which are on the disk, from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def time_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(parent: Path, size: int, total: int, turns: int) -> None:
    """Print the figures of objects of one size."""
    count = total // size
    room = HEADER + size + 4096 - (HEADER + size) % 4096
    arena = memoryview(mmap.mmap(-1, room * count))
    keys = [f"{secrets.token_hex(32)}_{'0' * 32}_L0-15_H0" for _ in range(count)]
    header, description = os.urandom(HEADER), os.urandom(700)
    slots = [arena[i * room : i * room + HEADER + size] for i in range(count)]
    items = []
    for key, slot in zip(keys, slots, strict=True):
        slot[HEADER:] = os.urandom(size)
        items.append(Item(key, [header, slot[HEADER:], description]))
    stores = [FileStore(parent / str(size)), FileStore(parent / str(size), direct=True)]
    paths = [path_of(stores[0].root, key) for key in keys]
    puts: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for store, times in zip(stores, puts, strict=True):
            os.sync()
            seconds = time_of(lambda store=store: store.put(items, replace=turn > 0))
            times.append(seconds)
    os.sync()
    want = [bytes(slot) for slot in slots[:4]]
    gets: tuple[list[float], list[float]] = ([], [])
    spans = [Span(key, 0, HEADER + size, [slot]) for key, slot in zip(keys, slots, strict=True)]
    for _ in range(turns + 1):
        for store, times in zip(stores, gets, strict=True):
            cool(paths)
            arena[:] = bytes(len(arena)) if not times else arena[:]
            times.append(time_of(lambda store=store: check(store, spans)))
    for slot, data in zip(slots, want, strict=False):
        if slot[HEADER:] != data[HEADER:]:
            raise SystemExit("bytes differ")
    if stores[1].direct_note:
        raise SystemExit(stores[1].direct_note)
    for name, (buffered, direct) in (("cold get", gets), ("put", puts)):
        pairs = list(zip(buffered[1:], direct[1:], strict=True))
        plain, past = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        print(
            f"{name:<9} {size // KIB:>5} KiB  buffered {total / plain / 1e6:>6.0f} MB/s"
            f" {plain / count * 1e6:>7.1f} us  direct {total / past / 1e6:>6.0f} MB/s"
            f" {past / count * 1e6:>7.1f} us  ratio {ratio:.2f}",
            flush=True,
        )
    for store in stores:
        store.close()


def check(store: FileStore, spans: Sequence[Span]) -> None:
    outcomes = store.get(spans)
    if not outcomes.ok:
        raise SystemExit(f"get failed: {outcomes.errors}")


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
            measure(parent, size, options.total_mib << 20, options.turns)
    finally:
        shutil.rmtree(parent)


if __name__ == "__main__":
    main()
