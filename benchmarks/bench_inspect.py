"""Bench: a survey of a file store against a bare walk over the same files.

Usage: python benchmarks/bench_inspect.py [--root DIR] [--objects 100000] [--rounds 5] [--verify]
The bare walk lists every folder and asks for every file's size, as `ls -lR` would, and does
nothing with what it learns. Both take turns; each figure is the median of the rounds.
"""

import argparse
import hashlib
import os
import platform
import resource
import statistics
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from unikv.backends.file import FileStore
from unikv.hints import announce
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.spec import KVSpec
from unikv.store import Item
from unikv.tools.survey import survey

BATCH = 1000


def fill(store: FileStore, objects: int) -> None:
    """Store pages of eight chunks: 2 layer cuts x 4 heads, small payloads, whole objects."""
    spec = KVSpec.mha(layers=4, kv_heads=4, head_dim=8, dtype="bfloat16", page_tokens=16)
    namespace = Namespace(
        spec=spec,
        weights="hf:" + "ab" * 20,
        model="bench",
        rope="none",
        layers_per_chunk=2,
        heads_per_chunk=1,
    )
    form = ObjectFormat.of(namespace)
    announce(store, namespace)
    items = []
    for index in range(objects // len(form.grid.chunks)):
        page = hashlib.sha256(str(index).encode()).hexdigest()
        for chunk in form.grid.chunks:
            payload = os.urandom(chunk.payload_bytes)
            header, description = form.encode(page, chunk, payload)
            items.append(Item(form.key(page, chunk), (header, payload, description)))
        if len(items) >= BATCH:
            store.put(items)
            items = []
    store.put(items)


def walk(folder: str) -> Iterator[int]:
    """Yield the size of every file beneath a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from walk(entry.path)
            else:
                yield entry.stat(follow_symlinks=False).st_size


def timed(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=None, help="folder on the disk to measure")
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--verify", action="store_true", help="read and check every object")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.root) as root:
        store = FileStore(root)
        fill(store, args.objects)
        bare, surveys = [], []
        for _ in range(args.rounds):
            bare.append(timed(lambda: sum(walk(root))))
            surveys.append(timed(lambda: survey(store, "bench", verify=args.verify)))
        tracemalloc.start()
        found = survey(store, "bench", verify=args.verify)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        (content,) = found.namespaces
        assert content.complete_pages == content.pages
        raw, whole = statistics.median(bare), statistics.median(surveys)
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        print(
            f"{found.objects:,} objects in {content.pages:,} pages: bare walk {raw:.2f} s, "
            f"survey{' and verification' if args.verify else ''} {whole:.2f} s "
            f"({whole / found.objects * 1e6:.1f} us an object, {whole / raw:.2f} x the walk)"
        )
        print(
            f"memory of the survey at its peak {peak / 2**20:.1f} MiB "
            f"({peak / content.pages:.0f} bytes a page); of the process "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"
        )
        store.close()


if __name__ == "__main__":
    main()
