"""I/O path: what tickets and the I/O process cost, and what they save beside a busy Python thread.

Four tables: the time that save_async and load_async keep the caller; how much later an answer comes
through the I/O process than straight from the store; whole objects of files through the I/O process
beside the raw loop of the same preads; and loads beside a thread that only computes, by io mode.

Run: OMP_NUM_THREADS=1 python benchmarks/bench_io.py [--root FOLDER] [--rounds 200]
One torch thread, as engines set it: with more, on two cores, torch waits for the busy thread.
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import (
    clock_gettime,
    monotonic,
    perf_counter,
    pthread_getcpuclockid,
    sleep,
    thread_time,
)
from typing import TYPE_CHECKING, Self, TypeAlias

import torch

from unikv import Client, KVSpec, Namespace, PagedCache, Topology, open_store, page_hashes
from unikv.arena import Slot
from unikv.orders import Read, ReadPart, Stat
from unikv.store_call import StoreCall

if TYPE_CHECKING:
    from unikv.tickets import Ticket

Clock: TypeAlias = Callable[[], float]
Side: TypeAlias = tuple[Callable[[], None], Clock, list[tuple[float, float]]]
"""A call, the clock of its CPU time, and how long it took: wall and CPU seconds."""

PAGE_TOKENS = 64
SPEC = KVSpec.mha(layers=30, kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=PAGE_TOKENS)


class Bench:
    """A client with a pool of ``pages`` pages, saved once."""

    def __init__(self, url: str, io: str, pages: int, layers_per_chunk: int = 15) -> None:
        self.namespace = Namespace(
            spec=SPEC,
            model="bench",
            weights="unversioned",
            rope="none",
            layers_per_chunk=layers_per_chunk,
            heads_per_chunk=8,
        )
        shape = ((pages + 1) * PAGE_TOKENS, 8, 128)
        k, v = ([torch.zeros(shape, dtype=torch.bfloat16) for _ in range(30)] for _ in range(2))
        self.slots = torch.arange(pages * PAGE_TOKENS).view(pages, PAGE_TOKENS)
        self.pages = page_hashes(range(pages * PAGE_TOKENS), PAGE_TOKENS)
        self.store = open_store(url)
        self.client = Client(
            self.store,
            self.namespace,
            Topology().rank(),
            PagedCache.slots(k, v),
            io=io,
            staging_bytes=256 << 20,
            siblings=False,
        )
        assert self.client.save(self.pages, self.slots).ok

    def load(self) -> float:
        """Return the seconds of a load of all pages."""
        begun = perf_counter()
        assert self.client.load(self.pages, self.slots).stopped is None
        return perf_counter() - begun


def measure(call: Callable[[], object], rounds: int, clock: Callable[[], float]) -> list[float]:
    times = []
    for _ in range(rounds):
        begun = clock()
        call()
        times.append(clock() - begun)
    return sorted(times)


def show_calls(url: str, rounds: int) -> None:
    print("\nkeeps the caller, us (median, 99th of 100)        wall          CPU")
    for io in ("threads", "process"):
        bench = Bench(url, io, 4)
        for name in ("save_async", "load_async"):
            call: Callable[..., Ticket[object]] = getattr(bench.client, name)
            wall, cpu = [], []
            for _ in range(rounds):
                begun, spent = perf_counter(), thread_time()
                ticket = call(bench.pages, bench.slots)
                cpu.append(thread_time() - spent)
                wall.append(perf_counter() - begun)
                ticket.result()
            print(f"{name}, 4 pages, io={io:<8} {_us(wall):>24} {_us(cpu):>16}")
        bench.client.close()


def show_latency(url: str, rounds: int) -> None:
    bench = Bench(url, "process", 1)
    guard = bench.client._transfers.guard  # noqa: SLF001 - below the client's own work
    key = bench.namespace.digest

    def ask() -> None:
        StoreCall(guard, monotonic() + 600).ask(Stat([key]))

    straight = measure(lambda: bench.store.stat([key]), rounds, perf_counter)
    through = measure(ask, rounds, perf_counter)
    added = median(through) - median(straight)
    print("\none stat of a missing key, us (median, 99th of 100)")
    print(f"straight from the store {_us(straight)}, through the I/O process {_us(through)}")
    print(f"added by the I/O process: {added * 1e6:.0f} us (target 300)")
    bench.client.close()


def show_files(root: str, rounds: int) -> None:
    print(
        "\nwhole objects, unverified, MB/s    raw loop   I/O process   ratio of pairs (target 0.95)"
    )
    for layers, pages in ((1, 16), (2, 16), (4, 16), (8, 16)):
        folder = f"{root}/files-{layers}"
        bench = Bench(Path(folder).as_uri(), "process", pages, layers)
        lane = bench.client._transfers.lanes[0]  # noqa: SLF001
        guard = bench.client._transfers.guard  # noqa: SLF001
        plan = lane.read
        slot = guard.arena.take(pages * plan.page_bytes, pages * plan.page_bytes)
        assert slot is not None
        order = Read([ReadPart(lane.passage, slot.start, bench.pages)], verify=False)
        call = StoreCall(guard, monotonic() + 600)
        keys = plan.keys(bench.pages)
        names = {path.name: str(path) for path in Path(folder).rglob("*_L*")}
        paths = [names[key].encode() for key in keys]
        columns = plan.expand(pages)
        size = int(columns.stop[0])
        memory = guard.arena.memory
        views = [
            memory[slot.start + place : slot.start + place + stop - start]
            for place, start, stop in zip(
                columns.place.tolist(), columns.start.tolist(), columns.stop.tolist(), strict=True
            )
        ]

        def raw(paths: Sequence[bytes] = paths, views: Sequence[memoryview] = views) -> None:
            for path, view in zip(paths, views, strict=True):
                fd = os.open(path, os.O_RDONLY)
                assert os.preadv(fd, [view], 0) == len(view)
                os.close(fd)

        def through(call: StoreCall = call, order: Read = order, slot: Slot = slot) -> None:
            assert not call.begin(order, slot).result().error

        sides: list[Side] = [(raw, thread_time, []), (through, _cpu_of_children, [])]
        for turn in range(max(10, rounds // 10)):
            for each, clock, pairs in sides[:: 1 if turn % 2 else -1]:
                begun, spent = perf_counter(), clock()
                each()
                pairs.append((perf_counter() - begun, clock() - spent))
        (walls, loop), (others, ours) = (zip(*pairs[1:], strict=True) for _, _, pairs in sides)
        wall, cpu = (
            median(one / other for one, other in zip(left, right, strict=True))
            for left, right in ((walls, others), (loop, ours))
        )
        total = sum(map(len, views)) / 1e6
        print(
            f"{size >> 10:>8} KiB x {len(paths):<5} {total / median(walls):>15.0f}"
            f" {total / median(others):>13.0f}   {wall:.3f} (CPU {cpu:.3f})"
        )
        slot.release()
        bench.client.close()


def _cpu_of_children() -> float:
    """Return the CPU seconds of the processes that this one started and that still run."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    stats = [stat for pid in children for stat in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9


def show_busy(url: str, rounds: int) -> None:
    print("\nload of 480 MiB beside a busy Python thread, by turns with pauses of 0.2 s")
    for io in ("process", "threads"):
        bench = Bench(url, io, 64)
        few = max(7, rounds // 12) if io == "process" else 5
        idle = median([bench.load() for _ in range(few)])
        busy, kept, share = [], [], []
        with Busy() as spinner:
            for _ in range(few):
                alone, _ = spinner.rate(partial(sleep, 0.2))
                beside, much = spinner.rate(lambda: busy.append(bench.load()))  # noqa: B023 - at once
                kept.append(beside / alone)
                share.append(much)
        print(
            f"io={io:<8} idle {idle * 1e3:.0f} ms, beside {median(busy) * 1e3:.0f} ms: ratio "
            f"{idle / median(busy):.2f} (target 0.5); the thread at {median(kept):.2f} of its own "
            f"(target 0.95), on a processor for {median(share):.2f} of the time"
        )
        bench.client.close()


class Busy:
    """A thread that only computes."""

    def __init__(self) -> None:
        self._stop = Event()
        self._turns = 0
        self._thread = Thread(target=self._compute)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def rate(self, work: Callable[[], object]) -> tuple[float, float]:
        """Return its turns a second while something else is done, and its share of a processor.

        The share is lost to whoever holds the interpreter's lock, and to processes that want the
        same processor; turns are lost also to what shares a core, a cache or memory with it.
        """
        assert self._thread.ident is not None
        clock = pthread_getcpuclockid(self._thread.ident)
        turns, begun, spent = self._turns, perf_counter(), clock_gettime(clock)
        work()
        seconds = perf_counter() - begun
        return (self._turns - turns) / seconds, (clock_gettime(clock) - spent) / seconds

    def _compute(self) -> None:
        while not self._stop.is_set():
            for _ in range(2000):
                self._turns += 1


def _us(times: Sequence[float]) -> str:
    ordered = sorted(times)
    return f"{median(ordered) * 1e6:.0f} ({ordered[len(ordered) * 99 // 100] * 1e6:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default="/dev/shm")  # noqa: S108 - memory, on purpose
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} torch threads, load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory(dir=options.root) as root:
        url = Path(root, "kv").as_uri()
        show_calls(url, options.rounds)
        show_latency(url, options.rounds)
        show_files(root, options.rounds)
        show_busy(url, options.rounds)


if __name__ == "__main__":
    main()
