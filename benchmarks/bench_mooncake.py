"""Mooncake bench: `MooncakeStore` against the library's bare calls for the same ranges, in one run.

``python benchmarks/bench_mooncake.py`` starts a master and an owner on loopback, or takes those of
``--master HOST:PORT``. Each figure is the median, over pairs of batches that take turns, of bare
time / store time: 1.00 means that the store adds nothing. Both sides move the same bytes of the
same registered memory through the same client; the bare side has its keys, addresses and sizes at
hand, and checks no more than the library's numbers. CPU is that of this process, the library's
threads included.
"""

import argparse
import contextlib
import gc
import mmap
import os
import platform
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.servers.mooncake_cluster import MooncakeCluster
from unikv.backends.mooncake import MooncakeStore
from unikv.registry import open_store
from unikv.store import Item, Span

KIB = 1024
SIZES = (64 * KIB, 256 * KIB, 1024 * KIB, 2048 * KIB)
BATCH = 16384 * KIB  # bytes in one call, before the other side takes its turn
EDGE = 4 * KIB  # a header
WANT = 0.95

PAGES, CHUNKS = 15_625, 8  # a million tokens

Side: TypeAlias = Callable[[], object]


class Times(NamedTuple):
    """How long one batch took, in seconds."""

    wall: float
    cpu: float


class Row(NamedTuple):
    """One figure: the times of each batch, bare and through the store."""

    name: str
    size: int
    moved: int  # bytes, of one batch
    bare: list[Times]
    store: list[Times]

    def __str__(self) -> str:
        bare, store = (statistics.median(t.wall for t in side) for side in (self.bare, self.store))
        cpu_bare, cpu_store = (
            statistics.median(t.cpu for t in side) for side in (self.bare, self.store)
        )
        ratio = statistics.median(
            b.wall / s.wall for b, s in zip(self.bare, self.store, strict=True)
        )
        mib = self.moved / 2**20
        good = "yes" if ratio >= WANT else "NO"
        return (
            f"{self.name:<18} {self.size // KIB:>5} KiB"
            f"  bare {self.moved / bare / 1e6:>5.0f} MB/s, {1e6 * cpu_bare / mib:>4.0f} us CPU/MiB"
            f"  store {self.moved / store / 1e6:>5.0f} MB/s, {1e6 * cpu_store / mib:>4.0f}"
            f"  ratio {ratio:.3f} of {len(self.bare)} pairs"
            f"  want {WANT:.2f}: {good}"
        )


class Case:
    """Objects of one size in registered memory, and both ways to move them."""

    def __init__(self, store: MooncakeStore, size: int, arena: memoryview) -> None:
        self.store = store
        self.native: Any = store._native  # noqa: SLF001 - the bare side's client is the same
        self.size = size
        self.count = BATCH // size
        self.arena = arena
        self.base = store._memory.find(arena)  # noqa: SLF001 - where it lies
        self.quarter = size // 4
        self.fresh_keys()

    def fresh_keys(self) -> None:
        """Name objects that nobody stored yet, and build what either side has at hand."""
        ends = "0" * 32
        self.keys = [f"{secrets.token_hex(32)}_{ends}_L0-15_H0" for _ in range(self.count)]
        size, base = self.size, self.base
        starts = range(0, BATCH, size)
        self.items = [
            Item(key, [self.arena[at : at + size]])
            for key, at in zip(self.keys, starts, strict=True)
        ]
        self.pointers = [[base + at] for at in starts]
        self.sizes = [[size]] * self.count
        self.offsets = [[0]] * self.count
        self.wants = [size] * self.count
        self.spans = [
            Span(key, 0, size, [self.arena[BATCH + at : BATCH + at + size]])
            for key, at in zip(self.keys, starts, strict=True)
        ]
        self.into = [[base + BATCH + at] for at in starts]
        # A header, and the second quarter of the object: what one of four readers wants.
        q = self.quarter
        self.part_spans = [
            Span(key, start, start + n, [self.arena[BATCH + at + start : BATCH + at + start + n]])
            for key, at in zip(self.keys, starts, strict=True)
            for start, n in ((0, EDGE), (2 * q, q))
        ]
        self.part_into = [[base + BATCH + at, base + BATCH + at + 2 * q] for at in starts]
        self.part_sizes = [[EDGE, q]] * self.count
        self.part_offsets = [[0, 2 * q]] * self.count

    def bare_put(self) -> None:
        """Reserve, write and end, each in one call for all."""
        native = self.native
        if any(native.batch_put_session_start(self.keys, self.wants)):
            raise SystemExit("start")
        wrote = native.batch_put_from_multi_buffer_ranges(
            self.keys, self.pointers, self.sizes, self.offsets
        )
        if wrote != self.wants or any(native.batch_put_session_end(self.keys)):
            raise SystemExit("write")

    def store_put(self) -> None:
        """Put objects in one call."""
        outcomes = self.store.put(self.items)
        if any(outcomes.codes):
            raise SystemExit(f"put: {outcomes.errors}")

    def plain_put(self) -> None:
        """Put by the library's plain call, which does not say what it stored."""
        pointers = [pointer for [pointer] in self.pointers]
        if any(self.native.batch_put_from(self.keys, pointers, self.wants)):
            raise SystemExit("plain put")

    def bare_read(self, into: Any, sizes: Any, offsets: Any, want: int) -> None:
        """Open a session, read and end it, each in one call for all."""
        native = self.native
        if any(native.batch_get_session_start(self.keys)):
            raise SystemExit("session")
        found = native.batch_get_into_multi_buffer_ranges(self.keys, into, sizes, offsets)
        if found != [want] * self.count:
            raise SystemExit("read")
        native.batch_get_session_end(self.keys)

    def bare_get(self) -> None:
        """Read whole objects."""
        self.bare_read(self.into, self.sizes, self.offsets, self.size)

    def bare_part(self) -> None:
        """Read two ranges of each object."""
        self.bare_read(self.part_into, self.part_sizes, self.part_offsets, EDGE + self.quarter)

    def plain_get(self) -> None:
        """Read whole objects by the library's plain call."""
        pointers = [pointer for [pointer] in self.into]
        if self.native.batch_get_into(self.keys, pointers, self.wants) != self.wants:
            raise SystemExit("plain get")

    def store_get(self) -> None:
        """Get whole objects in one call."""
        self.get(self.spans)

    def store_part(self) -> None:
        """Get two ranges of each object in one call."""
        self.get(self.part_spans)

    def get(self, spans: list[Span]) -> None:
        """Get spans in one call."""
        outcomes = self.store.get(spans)
        if any(outcomes.codes):
            raise SystemExit(f"get: {outcomes.errors}")

    def clear(self) -> None:
        """Remove all, and name the next."""
        self.native.remove_all(True)  # noqa: FBT003 - by force
        self.fresh_keys()


def time_of(side: Side) -> Times:
    """Time one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    side()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def measure(case: Case, rounds: int) -> list[Row]:
    """Put and get objects of one size, bare and stored in turn; the first round warms up."""
    part = case.count * (EDGE + case.quarter)
    put, plain_put, get, plain_get, ranges = rows = [
        Row(name, case.size, moved, [], [])
        for name, moved in (
            ("put", BATCH),
            ("put, plain call", BATCH),
            ("get", BATCH),
            ("get, plain call", BATCH),
            ("get header, 1/4", part),
        )
    ]
    for turn in range(rounds + 1):
        if turn == 1:
            for row in rows:
                row.bare.clear()
                row.store.clear()
        for row, bare in ((put, case.bare_put), (plain_put, case.plain_put)):
            sides = [(row.bare, bare), (row.store, case.store_put)]
            for times, side in sides if turn % 2 else reversed(sides):
                case.clear()
                times.append(time_of(side))
        for row, bare, store in (
            (get, case.bare_get, case.store_get),
            (plain_get, case.plain_get, case.store_get),
            (ranges, case.bare_part, case.store_part),
        ):
            sides = [(row.bare, bare), (row.store, store)]
            for times, side in sides if turn % 2 else reversed(sides):
                times.append(time_of(side))
        if case.arena[:BATCH] != case.arena[BATCH:]:
            raise SystemExit(f"{case.size}: bytes differ")
        case.clear()
    return rows


def match(store: MooncakeStore, asking: MooncakeStore | None) -> None:
    """Time how long it takes to look for the chunks of many pages, all of them stored."""
    ends = "0" * 32
    keys = [
        f"{page:064x}_{ends}_L0-15_H{chunk}" for page in range(PAGES) for chunk in range(CHUNKS)
    ]
    data = os.urandom(512)
    for at in range(0, len(keys), 1000):
        if not store.put([Item(key, [data]) for key in keys[at : at + 1000]]).ok:
            raise SystemExit("put")
    native: Any = store._native  # noqa: SLF001 - the bare call
    calls: dict[str, Callable[[], object]] = {
        "bare batch_get_replica_desc": lambda: native.batch_get_replica_desc(keys),
        "stat": lambda: store.stat(keys),
    }
    if asking:
        calls["stat by the HTTP server, no leases"] = lambda: asking.stat(keys)
    for name, call in calls.items():
        seconds = min(time_of(call).wall for _ in range(5))
        print(f"{name}: {len(keys)} keys, {PAGES} pages of {CHUNKS}: {seconds * 1e3:.0f} ms")
    native.remove_all(True)  # noqa: FBT003 - by force


def environment() -> str:
    """Say what the figures were taken on."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return (
        f"{cpu[0].partition(':')[2].strip() if cpu else platform.machine()}, {os.cpu_count()} cores"
        f", load {os.getloadavg()[0]:.1f}, Linux {platform.release()}, Python "
        f"{platform.python_version()}; TCP"
    )


@contextlib.contextmanager
def cluster(master: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield URLs of a master, the other with its HTTP server; start one if none is given."""
    if master:
        yield f"mooncake://{master}", None
        return
    with tempfile.TemporaryDirectory() as log:
        started = MooncakeCluster(Path(log))
        try:
            started.start_master()
            started.start_owner(256 << 20)
            yield started.url(), started.url(admin=started.admin)
        finally:
            started.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", help="HOST:PORT; every object of it is removed")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if find_spec("mooncake") is None:
        print("mooncake is not installed: see docs/mooncake.md")
        return
    print(environment())
    gc.disable()  # as timeit does: it would strike either side at random
    with cluster(options.master) as (url, with_admin):
        store = open_store(url)
        asking = open_store(with_admin) if with_admin else None
        assert isinstance(store, MooncakeStore)
        assert asking is None or isinstance(asking, MooncakeStore)
        arena = memoryview(mmap.mmap(-1, 2 * BATCH))
        arena[:BATCH] = os.urandom(BATCH)
        store.register(arena)
        for size in SIZES:
            print(*measure(Case(store, size, arena), options.rounds), sep="\n", flush=True)
        match(store, asking)
        store.close()
        if asking:
            asking.close()


if __name__ == "__main__":
    main()
