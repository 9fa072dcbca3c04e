"""Bench: checking and encoding objects against a raw file loop with the same hash calls.

Usage: python benchmarks/bench_objects.py [--folder /dev/shm] [--rounds 15]
Both loops run in turn, round after round; each figure is the median of the rounds' ratios.
"""

import argparse
import hashlib
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import NamedTuple

import xxhash

from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.spec import KVSpec

SLABS = 8
STAGING = 64 * 1024 * 1024  # bytes read before memory is used again, as a load does
SIZES = (64 * 1024, 256 * 1024, 1024 * 1024, 2 * 1024 * 1024)
hash64 = xxhash.xxh3_64_intdigest


class Set(NamedTuple):
    """Objects of one size on a file system, and the staging that they are read to, side by side."""

    form: ObjectFormat
    pages: list[str]
    payload: bytes
    folder: Path
    places: list[memoryview]  # a page: header and payload


@contextmanager
def objects_of(size: int, folder: Path) -> Iterator[Set]:
    """Store objects with payloads of ``size`` bytes in a folder of their own."""
    spec = KVSpec.mha(
        layers=SLABS,
        kv_heads=1,
        head_dim=size // SLABS // 64 // 4,
        dtype="bfloat16",
        page_tokens=64,
    )
    form = ObjectFormat.of(Namespace(spec=spec, weights="unversioned", model="bench", rope="none"))
    chunk = form.grid.chunks[0]
    payload = os.urandom(size)
    pages = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(STAGING // size)]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        for page in pages:
            header, description = form.encode(page, chunk, payload)
            (Path(name) / form.key(page, chunk)).write_bytes(header + payload + description)
        whole = form.header_bytes + size
        staging = memoryview(bytearray(len(pages) * whole))
        places = [staging[i * whole : (i + 1) * whole] for i in range(len(pages))]
        yield Set(form, pages, payload, Path(name), places)


def read_raw(some: Set) -> None:
    """Read each object and make the three hash calls that a check makes."""
    chunk, size = some.form.grid.chunks[0], some.form.header_bytes
    for page, place in zip(some.pages, some.places, strict=True):
        key = some.form.key(page, chunk)
        read_file(f"{some.folder}/{key}", place)
        seed = hash64(key.encode())
        hash64(place[: size - 8], seed)
        hash64(place[size:], seed)


def read_checked(some: Set) -> None:
    """Read each object and check it."""
    chunk = some.form.grid.chunks[0]
    for page, place in zip(some.pages, some.places, strict=True):
        read_file(f"{some.folder}/{some.form.key(page, chunk)}", place)
        if damage := some.form.check(page, chunk, place):
            raise SystemExit(str(damage))


def write_raw(some: Set) -> None:
    """Make the hash calls that encoding makes, and write as many bytes."""
    form, chunk = some.form, some.form.grid.chunks[0]
    slab = chunk.slab_bytes
    view = memoryview(some.payload)
    header, description = form.encode(some.pages[0], chunk, view)
    for page in some.pages:
        key = form.key(page, chunk)
        seed = hash64(key.encode())
        for i in range(SLABS):
            hash64(view[i * slab : (i + 1) * slab], seed)
        hash64(view, seed)
        hash64(header, seed)
        hash64(description, seed)
        write_file(f"{some.folder}/{key}", (header, view, description))


def write_encoded(some: Set) -> None:
    """Encode each object and write it."""
    form, chunk = some.form, some.form.grid.chunks[0]
    view = memoryview(some.payload)
    for page in some.pages:
        header, description = form.encode(page, chunk, view)
        write_file(f"{some.folder}/{form.key(page, chunk)}", (header, view, description))


def read_file(path: str, buffer: memoryview) -> None:
    """Fill ``buffer`` from the front of a file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.preadv(handle, [buffer], 0)
    finally:
        os.close(handle)


def write_file(path: str, buffers: tuple[bytes | memoryview, ...]) -> None:
    """Write a file anew; without the publish step, which is the backend's."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.writev(handle, buffers)
    finally:
        os.close(handle)


def measure(call: Callable[[Set], None], some: Set) -> float:
    """Return microseconds an object."""
    start = perf_counter_ns()
    call(some)
    return (perf_counter_ns() - start) / 1000 / len(some.pages)


def compare(raw: Callable[[Set], None], ours: Callable[[Set], None], some: Set, rounds: int) -> str:
    """Return one line: medians of both and of the ratio of each pair."""
    pairs = []
    for i in range(rounds + 1):
        order = (raw, ours) if i % 2 else (ours, raw)
        times = {call: measure(call, some) for call in order}
        pairs.append((times[raw], times[ours]))
    del pairs[0]  # the first warms caches
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    return f"{a:9.2f} us  {b:9.2f} us  {b - a:+7.2f} us  {ratio:6.3f}"


def main() -> None:
    """Print the environment and the figures."""
    parser = argparse.ArgumentParser(description="objects against a raw file loop")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))  # noqa: S108 - a tmpfs
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    print(f"Python {platform.python_version()}, xxhash {xxhash.VERSION} ({xxhash.XXHASH_VERSION})")
    print(f"objects of {SLABS} slabs, {STAGING >> 20} MiB in all, in {options.folder}")
    print(f"{'':22}{'raw':>9}     {'ours':>9}     {'more':>7}     ratio (target 0.90)")
    for size in SIZES:
        with objects_of(size, options.folder) as some:
            for name, raw, ours in (
                ("read", read_raw, read_checked),
                ("write", write_raw, write_encoded),
            ):
                line = compare(raw, ours, some, options.rounds)
                print(f"{name:6}{size // 1024:7} KiB      {line}")


if __name__ == "__main__":
    main()
