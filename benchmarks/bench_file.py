"""File bench: `FileStore` against the raw loop with the same ranges and the same publish step.

Run ``python benchmarks/bench_file.py --root DIR`` with DIR on the disk to measure. Each figure is
the median, over pairs of batches that take turns, of raw time / store time: 1.00 means that the
store adds nothing. The raw loop has its paths at hand and checks nothing but counts of bytes. It
publishes as the store does, if-absent: a look, a temporary file, renameat2; for ``blind put`` it
does not look. ``get`` reads from the page cache, where nothing hides what the store costs; ``cold
get`` from the disk.

``order`` rows are real objects through the orders that clients give: ``order get`` beside the bare
raw loop, ``verified get`` and ``sealed put`` beside a raw loop that makes the same hash calls, of
each object right behind or before its I/O.
"""

import argparse
import ctypes
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
from typing import NamedTuple, TypeAlias

from xxhash import xxh3_64_intdigest as hash64

from unikv import KVSpec, Namespace, page_hashes
from unikv.backends.file import FileStore
from unikv.backends.file_names import path_of
from unikv.geometry import Box, Interval, Phase
from unikv.header import TAG_BYTES
from unikv.orders import Read, ReadDone, ReadPart, Write, WriteDone, WritePage
from unikv.passage import Passage
from unikv.performing import perform
from unikv.store import Item, Span

KIB = 1024
SIZES = (64 * KIB, 256 * KIB, 1024 * KIB, 2048 * KIB)
BATCH = 16384 * KIB  # bytes in one call, before the other side takes its turn
TARGETS = {64 * KIB: 0.85}  # others: 0.95
HASHED = 0.90
PAGE_TOKENS, SLABS = 64, 8

Side: TypeAlias = Callable[[slice], None]
Pairs: TypeAlias = Sequence[tuple[slice, slice]]

renameat2 = ctypes.CDLL(None, use_errno=True).renameat2


class Times(NamedTuple):
    """How long one batch took."""

    wall: float  # seconds
    cpu: float  # seconds of this thread, which other processes hardly disturb


class Row(NamedTuple):
    """One figure: the times of each batch, raw and through the store."""

    name: str
    size: int
    raw: list[Times]
    store: list[Times]
    target: float

    def __str__(self) -> str:
        each = BATCH // self.size
        raw, store = (statistics.median(t.wall for t in side) for side in (self.raw, self.store))
        pairs = list(zip(self.raw, self.store, strict=True))
        wall = statistics.median(r.wall / s.wall for r, s in pairs)
        cpu = statistics.median(r.cpu / s.cpu for r, s in pairs)
        return (
            f"{self.name:<18} {self.size // KIB:>5} KiB"
            f"  raw {BATCH / raw / 1e6:>6.0f} MB/s {raw / each * 1e6:>6.1f} us"
            f"  store {BATCH / store / 1e6:>6.0f} MB/s {store / each * 1e6:>6.1f} us"
            f"  ratio {wall:.3f} (CPU {cpu:.3f}) of {len(pairs)} pairs"
            f"  want {self.target:.2f}: {'yes' if wall >= self.target else 'NO'}"
        )


class Case:
    """Objects of one size beneath two roots of one file system: one for each side."""

    def __init__(self, parent: Path, size: int, total: int) -> None:
        self.size = size
        self.objects = total // size
        self.source = memoryview(os.urandom(size * self.objects))
        self.target = memoryview(bytearray(size * self.objects))
        keys = [f"{secrets.token_hex(32)}_{'0' * 32}_L0-15_H0" for _ in range(self.objects)]
        self.keys = keys
        self.raw_root = parent / "raw"
        self.paths = [os.fsdecode(path_of(str(self.raw_root), key)) for key in keys]
        self.stored = [os.fsdecode(path_of(f"{parent}/store", key)) for key in keys]
        for path in self.paths + self.stored:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.temp = self.raw_root / ".tmp" / "0123456789abcdef"
        self.temp.mkdir(parents=True)
        self.store = FileStore(parent / "store")
        cut = [slice(i * size, (i + 1) * size) for i in range(self.objects)]
        self.items = [Item(key, [self.source[c]]) for key, c in zip(keys, cut, strict=True)]
        self.spans = [
            Span(key, 0, size, [self.target[c]]) for key, c in zip(keys, cut, strict=True)
        ]
        self.temps = [f"{self.temp}/{i}" for i in range(self.objects)]
        self.names = [
            (temp.encode(), path.encode())
            for temp, path in zip(self.temps, self.paths, strict=True)
        ]

    @property
    def batches(self) -> list[slice]:
        """The objects in runs, one for each turn."""
        each = BATCH // self.size
        return [slice(i, i + each) for i in range(0, self.objects - each + 1, each)]

    def raw_put(self, batch: slice) -> None:
        """Look whether each object is there; write, close and publish it, with nothing around."""
        for path in self.paths[batch]:
            if os.access(path, os.F_OK):
                raise SystemExit("there already")
        self.blind_put(batch)

    def blind_put(self, batch: slice) -> None:
        """Write, close and publish each object, whether or not it is there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        for temp, item, (source, target) in zip(
            self.temps[batch], self.items[batch], self.names[batch], strict=True
        ):
            fd = os.open(temp, flags, 0o600)
            if os.pwritev(fd, item.buffers, 0) != self.size:
                raise SystemExit("short write")
            os.close(fd)
            if renameat2(-100, source, -100, target, 1):
                raise SystemExit(os.strerror(ctypes.get_errno()))

    def raw_get(self, batch: slice) -> None:
        """Open, read and close the same files as the store does, with nothing around."""
        for path, span in zip(self.stored[batch], self.spans[batch], strict=True):
            fd = os.open(path, os.O_RDONLY)
            if os.preadv(fd, span.into, span.start) != self.size:
                raise SystemExit("short read")
            os.close(fd)

    def store_put(self, batch: slice) -> None:
        """Put objects in one call."""
        outcomes = self.store.put(self.items[batch])
        if any(outcomes.codes):
            raise SystemExit(f"put failed: {outcomes.errors}")

    def store_get(self, batch: slice) -> None:
        """Get objects in one call."""
        outcomes = self.store.get(self.spans[batch])
        if any(outcomes.codes):
            raise SystemExit(f"get failed: {outcomes.errors}")

    def cool(self, batch: slice) -> None:
        """Drop objects from the page cache; they are on the disk already."""
        for path in self.stored[batch]:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def clear(self) -> None:
        """Remove what both sides stored."""
        for path in self.paths:
            Path(path).unlink()
        self.store.delete(self.keys)


class Pages:
    """Whole objects of one namespace, one a page, in staging as clients have it."""

    def __init__(self, parent: Path, size: int, total: int) -> None:
        spec = KVSpec.mha(
            layers=SLABS,
            kv_heads=1,
            head_dim=size // SLABS // PAGE_TOKENS // 4,
            dtype="bfloat16",
            page_tokens=PAGE_TOKENS,
        )
        namespace = Namespace(spec=spec, model="bench", weights="unversioned", rope="none")
        self.passage = Passage.of(namespace, Box(Interval(0, SLABS), Interval(0, 1), Phase()), None)
        self.pages = page_hashes(range(total // size * PAGE_TOKENS), PAGE_TOKENS)
        plan, form = self.passage.read, self.passage.format
        staging = len(self.pages) * plan.page_bytes
        self.memory = memoryview(mmap.mmap(-1, staging, flags=mmap.MAP_PRIVATE))
        self.memory[:] = os.urandom(staging)
        self.head = plan.header_bytes
        whole = self.head + plan.read
        self.views = [self.memory[at : at + whole] for at in range(0, staging, plan.page_bytes)]
        self.keys = plan.keys(self.pages)
        self.roots = parent / "raw-pages", parent / "pages"
        self.raw, self.stored = (
            [os.fsdecode(path_of(str(root), key)) for key in self.keys] for root in self.roots
        )
        for path in self.raw + self.stored:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.temp = self.roots[0] / ".tmp"
        self.temp.mkdir()
        self.tail = form.encode(self.pages[0], plan.chunks[0], self.views[0][self.head :])[1]
        self.store = FileStore(self.roots[1])

    def raw_get(self, batch: slice) -> None:
        """Open, read and close each file."""
        for path, view in zip(self.stored[batch], self.views[batch], strict=True):
            fd = os.open(path, os.O_RDONLY)
            if os.preadv(fd, [view], 0) != len(view):
                raise SystemExit("short read")
            os.close(fd)

    def raw_verified(self, batch: slice) -> None:
        """Do so, and make the three hash calls that a check makes, while caches have the bytes."""
        head = self.head
        for path, key, view in zip(
            self.stored[batch], self.keys[batch], self.views[batch], strict=True
        ):
            fd = os.open(path, os.O_RDONLY)
            if os.preadv(fd, [view], 0) != len(view):
                raise SystemExit("short read")
            os.close(fd)
            seed = hash64(key.encode())
            hash64(view[: head - TAG_BYTES], seed)
            hash64(view[head:], seed)

    def raw_sealed(self, batch: slice) -> None:
        """Make the hash calls that encoding makes, then write and publish each object."""
        slab = (len(self.views[0]) - self.head) // SLABS
        for path, key, view in zip(
            self.raw[batch], self.keys[batch], self.views[batch], strict=True
        ):
            head, payload = view[: self.head], view[self.head :]
            seed = hash64(key.encode())
            for at in range(0, len(payload), slab):
                hash64(payload[at : at + slab], seed)
            for part in (payload, head, self.tail):
                hash64(part, seed)
            if os.access(path, os.F_OK):
                raise SystemExit("there already")
            temp = f"{self.temp}/{key}"
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            if os.pwritev(fd, [head, payload, self.tail], 0) != len(view) + len(self.tail):
                raise SystemExit("short write")
            os.close(fd)
            if renameat2(-100, temp.encode(), -100, path.encode(), 1):
                raise SystemExit(os.strerror(ctypes.get_errno()))

    def get(self, batch: slice) -> None:
        """Carry out a read that checks nothing."""
        self._read(batch, verify=False)

    def verified(self, batch: slice) -> None:
        """Carry out a read that checks every byte."""
        self._read(batch, verify=True)

    def sealed(self, batch: slice) -> None:
        """Carry out a write."""
        rows = [WritePage(page, None, 0, (0,)) for page in self.pages[batch]]
        order = Write(self.passage, self._at(batch), rows)
        answer = perform(self.store, self.memory, order, time.monotonic() + 60)
        if not isinstance(answer, WriteDone) or answer.stored != len(rows):
            raise SystemExit(f"write failed: {answer}")

    def clear(self) -> None:
        """Remove what both sides stored."""
        for path in self.raw:
            Path(path).unlink()
        self.store.delete(self.keys)

    def _read(self, batch: slice, *, verify: bool) -> None:
        order = Read([ReadPart(self.passage, self._at(batch), self.pages[batch])], verify)
        answer = perform(self.store, self.memory, order, time.monotonic() + 60)
        if not isinstance(answer, ReadDone) or answer.error or answer.bad:
            raise SystemExit(f"read failed: {answer}")

    def _at(self, batch: slice) -> int:
        return int(batch.start) * self.passage.read.page_bytes


def time_of(call: Side, batch: slice) -> Times:
    """Time one call."""
    wall, cpu = time.perf_counter(), time.thread_time()
    call(batch)
    return Times(time.perf_counter() - wall, time.thread_time() - cpu)


def take_turns(row: Row, raw: Side, store: Side, pairs: Pairs, before: Side | None = None) -> None:
    """Time both sides on their batches; who goes first changes from pair to pair."""
    for turn, (left, right) in enumerate(pairs):
        sides = [(row.raw, raw, left), (row.store, store, right)]
        for times, call, batch in sides if turn % 2 else reversed(sides):
            if before:
                before(batch)
            times.append(time_of(call, batch))


def measure(parent: Path, name: str, size: int, total: int, rounds: int) -> list[Row]:
    """Put and get objects of one size, raw and stored in turn; the first round warms up."""
    case = Case(parent, size, total)
    batches = case.batches
    names = ("put", "blind put", "get", "cold get")
    target = TARGETS.get(size, 0.95)
    put, blind, get, cold = rows = [Row(f"{name} {what}", size, [], [], target) for what in names]
    # Both read the same files, but never the one that the other just left in the CPU's cache.
    far = batches[len(batches) // 2 :] + batches[: len(batches) // 2]
    same, apart = (list(zip(batches, other, strict=True)) for other in (batches, far))
    for turn in range(rounds + 1):
        if turn == 1:
            for times in (times for row in rows for times in (row.raw, row.store)):
                times.clear()
        take_turns(blind, case.blind_put, case.store_put, same)
        case.clear()
        take_turns(put, case.raw_put, case.store_put, same)
        take_turns(get, case.raw_get, case.store_get, apart)
        if name != "tmpfs":
            os.sync()
            take_turns(cold, case.raw_get, case.store_get, apart, case.cool)
        if case.target != case.source:
            raise SystemExit(f"{name} {size}: bytes differ")
        case.clear()
    case.store.close()
    return [row for row in rows if row.raw]


def measure_orders(parent: Path, name: str, size: int, total: int, rounds: int) -> list[Row]:
    """Write and read whole objects by orders, and raw with the same hash calls."""
    case = Pages(parent, size, total)
    each = BATCH // size
    batches = [slice(i, i + each) for i in range(0, len(case.pages) - each + 1, each)]
    far = batches[len(batches) // 2 :] + batches[: len(batches) // 2]
    same, apart = (list(zip(batches, other, strict=True)) for other in (batches, far))
    put = Row(f"{name} sealed put", size, [], [], HASHED)
    get = Row(f"{name} order get", size, [], [], TARGETS.get(size, 0.95))
    verified = Row(f"{name} verified get", size, [], [], HASHED)
    rows = [put, get, verified]
    for turn in range(rounds + 1):
        if turn == 1:
            for times in (times for row in rows for times in (row.raw, row.store)):
                times.clear()
        take_turns(put, case.raw_sealed, case.sealed, same)
        take_turns(get, case.raw_get, case.get, apart)
        take_turns(verified, case.raw_verified, case.verified, apart)
        case.clear()
    case.store.close()
    return rows


def environment() -> str:
    """Say what the figures were taken on."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return (
        f"{cpu[0].partition(':')[2].strip() if cpu else platform.machine()}, {os.cpu_count()} cores"
        f", Linux {platform.release()}, Python {platform.python_version()}"
    )


def file_system(path: Path) -> str:
    """Return the type of the file system that a folder lies on."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, kind)
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--total-mib", type=int, default=128, help="MiB a round and side")
    options = parser.parse_args()
    print(environment())
    gc.disable()  # as timeit does: it would strike either side at random
    for place in filter(None, (Path("/dev/shm"), options.root)):  # noqa: S108 - tmpfs is the point
        kind = file_system(place.resolve())
        for size in SIZES:
            parent = Path(tempfile.mkdtemp(prefix="unikv-bench-", dir=place))
            try:
                total = options.total_mib << 20
                rows = measure(parent, kind, size, total, options.rounds)
                rows += measure_orders(parent, kind, size, total, options.rounds)
            finally:
                shutil.rmtree(parent)
            print(*rows, sep="\n", flush=True)


if __name__ == "__main__":
    main()
