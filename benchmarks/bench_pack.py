"""Pack bench: pack and unpack against one memcpy of the same bytes. It touches no store.

    python benchmarks/bench_pack.py [--mib 256] [--rounds 9] [--threads 2] [--json]

Each round times one torch ``copy_`` between two flat buffers, then pack, then unpack, all on the
same number of threads. A ratio is memcpy time by pack (or unpack) time of the same round; the table
shows the median of the rounds, the lowest and the highest. Pools and buffers are far larger than
the last cache. On a busy machine use one thread: with more, the many short parallel regions of
pack wait for whichever thread the machine took away.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from unikv.geometry import Phase, Piece
from unikv.kernels.reference import pack, unpack
from unikv.paged import PagedCache

HEADER = 512  # bytes before each chunk's payload, as in staging


@dataclass(frozen=True, slots=True)
class Geometry:
    """One rank's share of a page; ``groups`` head groups are chunks of their own."""

    name: str
    layers: int
    heads: int
    row_bytes: int  # of one head
    parts: int
    groups: int
    page_tokens: int = 64

    @property
    def page_bytes(self) -> int:
        """Payload bytes of a page."""
        return self.layers * self.parts * self.heads * self.row_bytes * self.page_tokens


GEOMETRIES = (
    Geometry("30 x 8 x 128 bf16", 30, 8, 256, 2, 4),
    Geometry("SmolLM2 30 x 3 x 64 bf16", 30, 3, 128, 2, 3),
    Geometry("MLA 61 x 576 bf16", 61, 1, 1152, 1, 1),
)


@dataclass(frozen=True, slots=True)
class Result:
    """Median times of one case, and ratios to memcpy as (median, lowest, highest)."""

    geometry: str
    pool: str
    order: str
    pages: int
    mib: float
    memcpy_gbs: float
    pack: tuple[float, float, float]
    unpack: tuple[float, float, float]


def cut_pieces(geometry: Geometry) -> tuple[list[Piece], int]:
    """Return the pieces of one page, chunk after chunk, and its staging bytes."""
    heads = geometry.heads // geometry.groups
    row = heads * geometry.row_bytes
    slab = geometry.parts * geometry.page_tokens * row
    chunk = -(-(HEADER + geometry.layers * slab) // 512) * 512
    pieces = [
        Piece(layer, part, group * heads, heads, Phase(), offset, row)
        for group in range(geometry.groups)
        for layer in range(geometry.layers)
        for part in range(geometry.parts)
        for offset in [group * chunk + HEADER + layer * slab + part * geometry.page_tokens * row]
    ]
    return pieces, -(-geometry.groups * chunk // 4096) * 4096


def build_pool(geometry: Geometry, kind: str, pages: int) -> PagedCache:
    """Return a pool of ``pages`` pages, filled so that its memory is really there."""
    dim, heads, layers = geometry.row_bytes // 2, geometry.heads, range(geometry.layers)
    slots = pages * geometry.page_tokens
    if geometry.parts == 1:
        shape = (slots, dim) if kind == "slots" else (slots // 16, 16, dim)
        return PagedCache.rows([_filled(*shape) for _ in layers])
    if kind == "slots":
        k, v = ([_filled(slots, heads, dim) for _ in layers] for _ in range(2))
        return PagedCache.slots(k, v)
    if kind == "blocks NHD":
        kv = [_filled(2, slots // 16, 16, heads, dim) for _ in layers]
        return PagedCache.blocks(kv, order="NHD", split="axis0")
    kv = [_filled(slots // 16, heads, 16, 2 * dim) for _ in layers]
    return PagedCache.blocks(kv, order="HND", split="packed")


def _filled(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16).fill_(1)


def order_pages(pool: PagedCache, geometry: Geometry, pages: int, order: str) -> Tensor:
    """Return an index of ``pages`` pages of the pool, which has more of them."""
    unit = 1 if order == "rows" else geometry.page_tokens if order == "pages" else 16
    unit = max(1, unit // pool.block_tokens)
    page_blocks = geometry.page_tokens // pool.block_tokens
    firsts = torch.randperm(pool.block_count // unit)[: pages * page_blocks // unit] * unit
    index = (firsts.unsqueeze(1) + torch.arange(unit)).view(pages, page_blocks)
    return pool.index(index, geometry.page_tokens, unique=True)


def time_call(call: Callable[[], object]) -> float:
    """Return the seconds that a call took."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(geometry: Geometry, kind: str, order: str, mib: int, rounds: int) -> Result:
    """Time one pool layout and page order."""
    pages = max(1, (mib << 20) // geometry.page_bytes)
    pool = build_pool(geometry, kind, pages + pages // 2)
    pieces, page_bytes = cut_pieces(geometry)
    index = order_pages(pool, geometry, pages, order)
    staging = torch.ones(pages, page_bytes, dtype=torch.uint8)
    source = torch.ones(pages * geometry.page_bytes, dtype=torch.uint8)
    target = torch.ones_like(source)
    calls = (
        lambda: target.copy_(source),
        lambda: pack(pool.parts, index, staging, pieces),
        lambda: unpack(pool.parts, index, staging, pieces),
    )
    for call in calls:
        call()
    times = [[time_call(call) for call in calls] for _ in range(rounds)]
    ratios = [sorted(row[0] / row[i] for row in times) for i in (1, 2)]
    spread = [(statistics.median(r), r[0], r[-1]) for r in ratios]
    memcpy = statistics.median(row[0] for row in times)
    return Result(
        geometry.name,
        kind if geometry.parts == 2 or kind == "slots" else "blocks",
        order,
        pages,
        len(source) / 2**20,
        len(source) / memcpy / 1e9,
        spread[0],
        spread[1],
    )


def cases() -> Iterator[tuple[Geometry, str, str]]:
    """Yield geometry, pool layout, and what lies at random: pages, blocks of 16 or single rows."""
    for geometry in GEOMETRIES:
        yield geometry, "slots", "pages"
        yield geometry, "slots", "rows"
        yield geometry, "blocks NHD", "blocks"
        if geometry.parts == 2:
            yield geometry, "blocks HND", "blocks"


def describe_machine(threads: int) -> str:
    """Return the environment that the figures hold for."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "?")
    cores = sum(line.startswith("processor") for line in lines)
    versions = f"python {platform.python_version()}, torch {torch.__version__}"
    return (
        f"{model}, {cores} cores, load {read_load()}; {versions}, {threads} threads for all calls"
    )


def read_load() -> str:
    """Return how many threads wanted a core in the last minute."""
    return Path("/proc/loadavg").read_text(encoding="utf-8").split()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="payload of each case")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    machine = describe_machine(given.threads)
    if not given.json:
        print(f"{machine}\n\n{'geometry':26}{'pool':12}{'random':8}{'pages':>6}{'MiB':>6}", end="")
        print(f"{'memcpy GB/s':>13}{'pack':>7} (want 0.40)  {'unpack':>8} (want 0.25)")
    results = []
    for geometry, kind, order in cases():
        r = measure(geometry, kind, order, given.mib, given.rounds)
        results.append(r)
        if not given.json:
            print(f"{r.geometry:26}{r.pool:12}{r.order:8}{r.pages:6}{r.mib:6.0f}", end="")
            print(
                f"{r.memcpy_gbs:13.1f}{r.pack[0]:7.2f} ({r.pack[1]:.2f}..{r.pack[2]:.2f})", end=""
            )
            print(f"{r.unpack[0]:11.2f} ({r.unpack[1]:.2f}..{r.unpack[2]:.2f})")
    if not given.json:
        print(f"load at the end {read_load()}")
    else:
        print(json.dumps({"machine": machine, "results": [asdict(r) for r in results]}, indent=1))


if __name__ == "__main__":
    main()
