"""Plan: time of plan, keys and expand for a long prompt, beside a plain loop over every transfer.

Context ranks also work out from logical slots which pages they own, and where these lie.

Run: python benchmarks/bench_plan.py [--rounds 30]
"""

import argparse
import os
import platform
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unikv import KVSpec, Namespace, Topology
from unikv.objects import ObjectFormat
from unikv.planner import plan_read
from unikv.sharding import local_row, owner
from unikv.topology import Rank

Slots: TypeAlias = NDArray[np.int64]

PAGE_TOKENS = 64
TOKENS = 200_000
TARGET_MS = 5.0
FEW, MANY = 100, 100_000
WINDOW = 1_024  # pages that a load plans at a time, at most: as many as its staging holds

GQA = KVSpec.mha(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=PAGE_TOKENS)
MLA = KVSpec.mla(layers=61, dim=576, dtype="bfloat16", page_tokens=PAGE_TOKENS)


def fmt_of(spec: KVSpec, layers: int | None, heads: int, phases: int = 1) -> ObjectFormat:
    namespace = Namespace(
        spec=spec,
        model="bench",
        weights="unversioned",
        rope="none",
        layers_per_chunk=layers,
        heads_per_chunk=heads,
        phases=phases,
    )
    return ObjectFormat.of(namespace)


class Case(NamedTuple):
    """A reader: how its pages are cut, and which rank it is."""

    name: str
    fmt: ObjectFormat
    rank: Rank


def cases() -> list[Case]:
    wide = fmt_of(GQA, 4, 8)
    groups = fmt_of(GQA, None, 1)
    uneven = Topology(pp=2, pp_layers=(2, 30))
    dealt = fmt_of(MLA, 16, 1, phases=2)
    return [
        Case("GQA tp1, 8 head groups", groups, Topology().rank()),
        Case("GQA tp1, 8 layer cuts", wide, Topology().rank()),
        Case("GQA tp2, half of each group", wide, Topology(tp=2).rank(tp=1)),
        Case("GQA pp 2-30, cut inside a chunk", groups, uneven.rank(pp=1)),
        Case("MLA tp1, 8 layer cuts", fmt_of(MLA, 8, 1), Topology().rank()),
        Case("MLA cp2, 8 layer cuts", fmt_of(MLA, 8, 1), Topology(cp=2).rank(cp=1)),
        Case("GQA cp4, 8 head groups", groups, Topology(cp=4).rank(cp=1)),
        Case("MLA dcp1 of 2 phases, 4 cuts", dealt, Topology().rank()),
        Case(
            "MLA dcp2 of 4 phases, 4 cuts",
            fmt_of(MLA, 16, 1, phases=4),
            Topology(dcp=2).rank(dcp=0),
        ),
        Case(
            "MLA cp2, dcp2, 8 cuts",
            fmt_of(MLA, 8, 1, phases=2),
            Topology(cp=2, dcp=2).rank(cp=0, dcp=0),
        ),
    ]


def slots_of(pages: int, rank: Rank) -> Slots:
    """Return logical slots of a path on context ranks, a row a page, as one of them holds it."""
    width = PAGE_TOKENS // rank.topology.dcp
    return np.arange(pages * width).reshape(pages, width)


def ours(case: Case, pages: list[str], slots: Slots) -> int:
    """Plan a load; where ranks share pages out, find our own and their rows in our pool first."""
    plan = plan_read(case.fmt, case.rank.box(case.fmt.namespace.spec))
    shard = case.rank.shard(case.fmt.namespace.spec)
    if shard.ranks > 1:
        width = slots.shape[1]
        rows = np.flatnonzero(owner(slots[:, 0], width, shard.ranks) == shard.rank)
        local_row(slots[rows], width, shard.ranks)
        pages = [pages[row] for row in rows.tolist()]
    keys = plan.keys(pages)
    columns = plan.expand(len(pages))
    return len(keys) + len(columns.key)


def loop(case: Case, pages: list[str], slots: Slots) -> int:
    """Build the same transfers one by one, as (key, start, stop, place)."""
    fmt, shard = case.fmt, case.rank.shard(case.fmt.namespace.spec)
    plan = plan_read(fmt, case.rank.box(fmt.namespace.spec))
    digest, header, slab = fmt.namespace.digest, fmt.header_bytes, fmt.grid.slab_bytes
    transfers: list[tuple[str, int, int, int]] = []
    mine = [
        page
        for page, first in zip(pages, slots[:, 0].tolist(), strict=True)
        if owner(first, slots.shape[1], shard.ranks) == shard.rank
    ]
    for n, page in enumerate(mine):
        for chunk, first, slabs, at in zip(
            plan.chunks, plan.first_slab, plan.slabs, plan.place, strict=True
        ):
            key = f"{page}_{digest}_{chunk.suffix}"
            place = n * plan.page_bytes + at
            start = header + first * slab
            stop = start + slabs * slab
            if first:
                transfers.append((key, 0, header, place))
                transfers.append((key, start, stop, place + header))
            else:
                transfers.append((key, 0, stop, place))
    return len(transfers)


def time_ms(work: Callable[[], object]) -> float:
    begin = perf_counter()
    work()
    return (perf_counter() - begin) * 1e3


def compare(case: Case, rounds: int) -> float:
    """Print the times of one prompt, ours and the loop's in turn; return our median."""
    pages = [f"{n:064x}" for n in range(TOKENS // PAGE_TOKENS)]
    slots = slots_of(len(pages), case.rank)
    plan = plan_read(case.fmt, case.rank.box(case.fmt.namespace.spec))
    mine: list[float] = []
    raw: list[float] = []
    for _ in range(rounds):  # in turn, so that a busy machine is busy for both
        mine.append(time_ms(lambda: ours(case, pages, slots)))
        raw.append(time_ms(lambda: loop(case, pages, slots)))
    spans = len(plan.spans.key) * len(pages) // case.rank.topology.cp
    print(
        f"{case.name:34} {spans:7,} {plan.read / plan.needed:11.2f} "
        f"{median(mine):7.2f} ({min(mine):.2f}) {median(raw):7.2f} ({min(raw):.2f})"
    )
    return median(mine)


def grow(case: Case, rounds: int) -> tuple[float, float, float]:
    """Return our median microseconds a page: of few pages, of many by windows, of many at once."""

    def run(count: int, window: int, again: int) -> None:
        for first in [*range(0, count, window)] * again:
            stop = min(first + window, count)
            ours(case, pages[first:stop], slots[first:stop])

    pages = [f"{n:064x}" for n in range(MANY)]
    slots = slots_of(MANY, case.rank)
    times: list[list[float]] = [[], [], []]
    sizes = ((FEW, FEW), (MANY, WINDOW), (MANY, MANY))
    for _ in range(rounds):
        for column, (count, window) in zip(times, sizes, strict=True):
            again = MANY // count // 10 or 1  # so that few pages are timed for long enough, too
            work = partial(run, count, window, again)
            column.append(time_ms(work) * 1e3 / count / again)
    few, windows, at_once = map(median, times)
    return few, windows, at_once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, numpy {np.__version__}"
    )
    print(
        f"{TOKENS:,} tokens, {TOKENS // PAGE_TOKENS:,} pages of {PAGE_TOKENS}; "
        f"ms, median (best) of {rounds}"
    )
    print(f"{'reader':34} {'spans':>7} {'read/needed':>11} {'ours':>14} {'loop':>14}")
    worst = max(compare(case, rounds) for case in cases())
    print(f"worst median {worst:.2f} ms, target {TARGET_MS:.0f} ms")
    print(
        f"us a page, median of 9: {FEW} pages; {MANY:,} by windows of {WINDOW:,}; {MANY:,} at once"
    )
    for case in cases():
        few, windows, at_once = grow(case, 9)
        ratios = f"{windows / few:5.2f} {at_once / few:5.2f}"
        print(f"{case.name:34} {few:11.2f} {windows:11.2f} {at_once:11.2f}   ratios {ratios}")
    print("target: ratios to few pages of 1 or less; a load goes by windows")


if __name__ == "__main__":
    main()
