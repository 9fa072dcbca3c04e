"""Memory: what a save and a load of many pages take beside the pool, at two numbers of pages.

python benchmarks/bench_memory.py

Each case runs in a process of its own: the peak of resident memory after the pool was filled,
less what was resident before the call.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from unikv import Client, KVSpec, Namespace, PagedCache, Topology, open_store, page_hashes

LAYERS, HEADS, DIM, PAGE = 8, 2, 64, 64  # 256 KiB a page in bfloat16


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(what: str, pages: int, root: str) -> None:
    spec = KVSpec.mha(
        layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype="bfloat16", page_tokens=PAGE
    )
    namespace = Namespace(
        spec=spec, weights="unversioned", model="bench", rope="none", layers_per_chunk=4
    )
    shape = (pages * PAGE, HEADS, DIM)
    k, v = ([torch.ones(shape, dtype=torch.bfloat16) for _ in range(LAYERS)] for _ in range(2))
    slots = torch.arange(pages * PAGE).view(pages, PAGE)
    names = page_hashes(range(pages * PAGE), PAGE)
    client = Client(
        open_store(f"file://{root}"), namespace, Topology().rank(), PagedCache.slots(k, v)
    )
    client.match(names[:1])
    before = resident_mib()
    report = client.save(names, slots) if what == "save" else client.load(names, slots)
    assert report.pages == pages, report
    print(f"{what:4} {pages:6} pages of 256 KiB: {peak_mib() - before:7.1f} MiB beside the pool")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help=argparse.SUPPRESS)
    case = parser.parse_args().case
    if case:
        measure(case[0], int(case[1]), case[2])
        return
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}; staging 64 MiB"
    )
    for pages in (256, 2048):
        with tempfile.TemporaryDirectory() as root:
            for what in ("save", "load"):
                command = [sys.executable, __file__, what, str(pages), root]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
