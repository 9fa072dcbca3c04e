"""Cross-grid: a load through a sibling's grid beside a load of the same bytes by the own grid.

Both clients read the same objects of the same files into pools of one shape; the one's namespace
wrote them, the other's own grid is empty, so that it looks for siblings and asks for sizes first.

Run: python benchmarks/bench_cross_grid.py [--rounds 101] [--pages 8] [--root FOLDER]
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from unikv import Client, KVSpec, Namespace, PagedCache, Topology, open_store, page_hashes
from unikv.store import Store
from unikv.topology import Rank

PAGE_TOKENS = 64
TARGET = 1.1

GQA = KVSpec.mha(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=PAGE_TOKENS)
MLA = KVSpec.mla(layers=61, dim=576, dtype="bfloat16", page_tokens=PAGE_TOKENS)


class Case(NamedTuple):
    """A reader, the grid that is stored and the reader's own."""

    name: str
    stored: Namespace
    own: Namespace
    rank: Rank


def namespace_of(spec: KVSpec, layers: int, heads: int = 1, phases: int = 1) -> Namespace:
    return Namespace(
        spec=spec,
        model="bench",
        weights="unversioned",
        rope="none",
        layers_per_chunk=layers,
        heads_per_chunk=heads,
        phases=phases,
    )


def cases() -> list[Case]:
    fine, coarse = namespace_of(GQA, 16, 2), namespace_of(GQA, 8, 4)
    latents = namespace_of(MLA, 61)
    return [
        Case("GQA tp1, chunks of 1 MiB", fine, coarse, Topology().rank()),
        Case("GQA tp2 of it", fine, coarse, Topology(tp=2).rank(tp=1)),
        Case("GQA tp4, half of each chunk", coarse, fine, Topology(tp=4).rank(tp=1)),
        Case("GQA pp 20-12, cut inside", fine, coarse, _stage(20, 12)),
        Case("GQA cp2, its pages", fine, coarse, Topology(cp=2).rank(cp=1)),
        Case("MLA tp1, chunks of 4.3 MiB", latents, namespace_of(MLA, 16), Topology().rank()),
        Case("MLA tp1 of 4 phases", namespace_of(MLA, 61, phases=4), latents, Topology().rank()),
    ]


def _stage(*layers: int) -> Rank:
    return Topology(pp=len(layers), pp_layers=layers).rank(pp=1)


def pool_of(spec: KVSpec, rank: Rank, slots: int) -> PagedCache:
    box = rank.box(spec)
    if spec.kind == "mla":
        shape: Sequence[int] = (slots, spec.head_dim)
        rows = [torch.ones(*shape, dtype=torch.bfloat16) for _ in range(box.layers.size)]
        return PagedCache.rows(rows)
    shape = (slots, box.heads.size, spec.head_dim)
    k, v = (
        [torch.ones(*shape, dtype=torch.bfloat16) for _ in range(box.layers.size)] for _ in "kv"
    )
    return PagedCache.slots(k, v)


def time_load(client: Client, pages: Sequence[str], slots: torch.Tensor) -> tuple[float, int]:
    begin = perf_counter()
    report = client.load(pages, slots)
    spent = perf_counter() - begin
    if report.pages != len(pages):
        raise RuntimeError(f"{report.pages} of {len(pages)} pages loaded: {report.stopped}")
    return spent, report.bytes_read


def compare(case: Case, store: Store, pages: Sequence[str], rounds: int) -> float:
    """Print both times, taken in turn, and return the median of the paired ratios."""
    spec = case.stored.spec
    slots = torch.arange(len(pages) * PAGE_TOKENS).view(len(pages), PAGE_TOKENS)
    pool = pool_of(spec, Topology().rank(), len(pages) * PAGE_TOKENS)
    Client(store, case.stored, Topology().rank(), pool).save(pages, slots)
    pool = pool_of(spec, case.rank, len(pages) * PAGE_TOKENS)
    own = Client(store, case.stored, case.rank, pool)
    cross = Client(store, case.own, case.rank, pool)
    ratios: list[float] = []
    times: list[tuple[float, float]] = []
    for turn in range(rounds + 2):
        both = [(own, 0), (cross, 1)]
        spent = [0.0, 0.0]
        read = [0, 0]
        for client, which in both if turn % 2 else both[::-1]:
            spent[which], read[which] = time_load(client, pages, slots)
        if read[0] != read[1]:
            raise RuntimeError(f"{read[0]} bytes by the own grid, {read[1]} by the sibling's")
        if turn >= 2:  # the first two touch the arenas and find the siblings
            ratios.append(spent[1] / spent[0])
            times.append((spent[0] * 1e3, spent[1] * 1e3))
    mine, other = (median(column) for column in zip(*times, strict=True))
    print(
        f"{case.name:30} {read[0] / 2**20:8.0f} MiB {mine:9.1f} ms {other:9.1f} ms "
        f"{median(ratios):8.3f}  ({min(ratios):.3f} to {max(ratios):.3f})"
    )
    return median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--pages", type=int, default=8)
    parser.add_argument("--root", type=Path, help="folder to store in; a temporary one by default")
    arguments = parser.parse_args()
    pages = page_hashes(range(arguments.pages * PAGE_TOKENS), PAGE_TOKENS)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
    print(f"{len(pages)} pages of {PAGE_TOKENS} tokens, files in cache, {arguments.rounds} rounds")
    print(
        f"{'reader':30} {'read':>12} {'own grid':>12} {'sibling':>12} {'ratio, median (range)':>24}"
    )
    worst = 0.0
    for case in cases():
        with tempfile.TemporaryDirectory(dir=arguments.root) as folder:
            store = open_store(Path(folder).as_uri())
            worst = max(worst, compare(case, store, pages, arguments.rounds))
            store.close()
    print(f"worst median ratio {worst:.3f}, target {TARGET}")


if __name__ == "__main__":
    main()
