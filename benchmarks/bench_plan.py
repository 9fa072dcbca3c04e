"""Plan: time of plan, keys and expand for a long prompt, beside a plain loop over every transfer.

Run: python benchmarks/bench_plan.py [--rounds 30]
"""

import argparse
import os
import platform
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from unikv import KVSpec, Namespace, Topology
from unikv.geometry import Box
from unikv.objects import ObjectFormat
from unikv.planner import plan_read

PAGE_TOKENS = 64
TOKENS = 200_000
TARGET_MS = 5.0

GQA = KVSpec.mha(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=PAGE_TOKENS)
MLA = KVSpec.mla(layers=61, dim=576, dtype="bfloat16", page_tokens=PAGE_TOKENS)


def fmt_of(spec: KVSpec, layers: int | None, heads: int) -> ObjectFormat:
    namespace = Namespace(
        spec=spec,
        model="bench",
        weights="unversioned",
        rope="none",
        layers_per_chunk=layers,
        heads_per_chunk=heads,
    )
    return ObjectFormat.of(namespace)


def ours(fmt: ObjectFormat, box: Box, pages: list[str]) -> int:
    plan = plan_read(fmt, box)
    keys = plan.keys(pages)
    columns = plan.expand(len(pages))
    return len(keys) + len(columns.key)


def loop(fmt: ObjectFormat, box: Box, pages: list[str]) -> int:
    """Build the same transfers one by one, as (key, start, stop, place)."""
    plan = plan_read(fmt, box)
    digest, header, slab = fmt.namespace.digest, fmt.header_bytes, fmt.grid.slab_bytes
    transfers: list[tuple[str, int, int, int]] = []
    for n, page in enumerate(pages):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    pages = [f"{n:064x}" for n in range(TOKENS // PAGE_TOKENS)]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, numpy {np.__version__}"
    )
    print(
        f"{TOKENS:,} tokens, {len(pages):,} pages of {PAGE_TOKENS}; ms, median (best) of {rounds}"
    )
    print(f"{'reader':34} {'spans':>7} {'read/needed':>11} {'ours':>14} {'loop':>14}")
    wide = fmt_of(GQA, 4, 8)
    cases = [
        ("GQA tp1, 8 head groups", fmt_of(GQA, None, 1), Topology().rank().box(GQA)),
        ("GQA tp1, 8 layer cuts", wide, Topology().rank().box(GQA)),
        ("GQA tp2, half of each group", wide, Topology(tp=2).rank(tp=1).box(GQA)),
        (
            "GQA pp 2-30, cut inside a chunk",
            fmt_of(GQA, None, 1),
            Topology(pp=2, pp_layers=(2, 30)).rank(pp=1).box(GQA),
        ),
        ("MLA tp1, 8 layer cuts", fmt_of(MLA, 8, 1), Topology().rank().box(MLA)),
    ]
    worst = 0.0
    for name, fmt, box in cases:
        plan = plan_read(fmt, box)
        mine: list[float] = []
        raw: list[float] = []
        for _ in range(rounds):  # in turn, so that a busy machine is busy for both
            mine.append(time_ms(lambda fmt=fmt, box=box: ours(fmt, box, pages)))  # type: ignore[misc]  # bound early
            raw.append(time_ms(lambda fmt=fmt, box=box: loop(fmt, box, pages)))  # type: ignore[misc]  # bound early
        worst = max(worst, median(mine))
        print(
            f"{name:34} {len(plan.spans.key) * len(pages):7,} {plan.read / plan.needed:11.2f} "
            f"{median(mine):7.2f} ({min(mine):.2f}) {median(raw):7.2f} ({min(raw):.2f})"
        )
    print(f"worst median {worst:.2f} ms, target {TARGET_MS:.0f} ms")


if __name__ == "__main__":
    main()
