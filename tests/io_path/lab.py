"""Lab: a small world on a faulty file store, gates that hold it at a stage, and what is left."""

import gc
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.client.world import Side, World
from tests.io_path.staged import SlowToOpen, Staged, Unopenable
from unikv import KVSpec, Topology
from unikv.backends.file import FileStore
from unikv.events import Event
from unikv.objects import ObjectFormat
from unikv.registry import open_store
from unikv.store import Span, Store
from unikv.testing_faults import FaultyStore, Plan, Rule, faulty, told

PAGES = "[0-9a-f]*"
"""Glob of the keys of pages: hint records begin with ``ns_``."""

REUSED = 12_345
"""What an engine writes into slots that are its own again; no page holds it."""

SPEC = KVSpec.mha(layers=6, kv_heads=4, head_dim=3, v_head_dim=5, dtype="int32", page_tokens=4)
GRID = {"layer_cuts": (0, 2, 4, 6), "heads_per_chunk": 2}
CHUNKS = 6  # of a page
STAGING = 1 << 20
RANK = Topology().rank()


def make_world(pages: int = 6, **options: Any) -> World:
    """Return a world whose values tell part, layer, token, head and dim apart."""
    return World(SPEC, pages_count=pages, options={**GRID, **options})


@dataclass
class Lab:
    """One store on disk, steered by files that all processes see."""

    root: Path
    io: str = "threads"
    world: World = field(default_factory=make_world)
    events: list[Event] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "gates").mkdir(exist_ok=True)

    @property
    def url(self) -> str:
        """Where the objects are."""
        return f"file://{self.root}/kv"

    def gate(self, name: str = "gate") -> str:
        """Return a path that rules wait for as long as it exists."""
        return str(self.root / "gates" / name)

    def shut(self, name: str = "gate") -> None:
        """Let rules of this gate befall calls."""
        Path(self.gate(name)).touch()

    def open(self, name: str = "gate") -> None:
        """End all waits at this gate, in every process."""
        Path(self.gate(name)).unlink(missing_ok=True)

    @property
    def told_file(self) -> str:
        """Where stores of all processes write what befell."""
        return str(self.root / "told")

    def befallen(self, fault: str | None = None) -> int:
        """Return how many faults were done, in every process."""
        return sum(fault in (None, one.fault) for one in told(self.told_file))

    def store(self, *rules: Rule) -> FaultyStore:
        """Open the store with faults."""
        return faulty(open_store(self.url), Plan(rules, told_file=self.told_file))

    def staged(self, stage: str) -> Store:
        """Open the store so that the I/O side stops at a stage while the gate is shut."""
        return Staged(self.url, stage, self.gate(), self.told_file)

    def slow_to_open(self) -> Store:
        """Return a store that no I/O process can open while the gate is shut."""
        return SlowToOpen(self.url, self.gate(), self.told_file)

    def unopenable(self) -> Store:
        """Return a store that no I/O process can open."""
        return Unopenable(self.url, "open", self.gate(), self.told_file)

    def bare(self) -> FileStore:
        """Open the store without faults."""
        store = open_store(self.url)
        assert isinstance(store, FileStore)
        return store

    def side(self, store: Store, *, world: World | None = None, **options: Any) -> Side:
        """Return a rank with its pool and client; events are kept."""
        given: dict[str, Any] = {"io": self.io, "staging_bytes": STAGING}
        given["on_event"] = self.events.append
        side = (world or self.world).side(store, RANK, **(given | options))
        self.sides.append(side)
        return side

    def fill(self, world: World | None = None) -> None:
        """Store all pages, without faults and without an I/O process."""
        side = (world or self.world).side(self.bare(), RANK, filled=True, staging_bytes=STAGING)
        with side.client:
            assert side.client.save((world or self.world).pages, side.slots).ok

    def close(self) -> None:
        """Open all gates, close all clients and forget them."""
        for path in (self.root / "gates").iterdir():
            path.unlink(missing_ok=True)
        for side in self.sides:
            side.client.close()
        self.sides.clear()

    def kinds(self) -> Counter[str]:
        """Return how often each kind of event was told."""
        return Counter(event.kind for event in self.events)


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not so after {seconds} s"
        time.sleep(0.002)


SLACK_S = 0.5
"""What a machine may be late by whose two cores are busy with something else."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Assert that a block takes at most so long, and what a busy machine adds to it."""
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert took <= seconds + SLACK_S, f"{took:.3f} s, want at most {seconds}"


def snapshot(side: Side) -> list[Tensor]:
    """Return a copy of the whole pool."""
    return [layer.clone() for part in side.pools for layer in part]


def unchanged(side: Side, before: list[Tensor]) -> bool:
    """Tell whether the whole pool is as it was."""
    now = [layer for part in side.pools for layer in part]
    return all(torch.equal(one, other) for one, other in zip(now, before, strict=True))


def reuse(side: Side, value: int = REUSED) -> list[Tensor]:
    """Do as an engine whose slots are free: fill the whole pool; return a copy of it."""
    for part in side.pools:
        for layer in part:
            layer.fill_(value)
    return snapshot(side)


def damages(world: World, store: Store) -> list[str]:
    """Return what is wrong with any object of a world: all of them are read whole."""
    form = ObjectFormat.of(world.namespace)
    found: list[str] = []
    for entry in store.list():
        if world.namespace.digest not in entry.key:
            continue
        data = bytearray(entry.size)
        assert store.get([Span(entry.key, 0, entry.size, (memoryview(data),))]).ok
        found += [str(damage) for damage in form.check_object(entry.key, data)]
    return found


def objects(store: Store) -> int:
    """Return how many objects of pages are stored."""
    return sum(not entry.key.startswith("ns_") for entry in store.list())


def arena_of(side: Side) -> Any:
    """Return a client's arena."""
    return side.client._transfers.guard.arena


def settled(side: Side) -> bool:
    """Tell whether all I/O of a client has ended and every byte of its arena is free."""
    side.client._transfers.guard.crew.reap()
    return bool(arena_of(side).used == 0 and arena_of(side).quarantined == 0)


def emptied(side: Side) -> bool:
    """Do away with what was prefetched, of which more may still come; tell whether all is free."""
    side.client._transfers.larder.clear()
    return settled(side)


def start(lab: Lab, side: Side) -> None:
    """Let a client start its I/O process and read hints, however long that takes."""
    deadline_s, side.client._deadline_s = side.client._deadline_s, 20.0
    side.client.match(lab.world.pages)
    side.client.load([], side.slots[:0])
    side.client._deadline_s = deadline_s


def reaped(side: Side) -> bool:
    """Take back what has ended; tell whether no I/O that was given up goes on."""
    crew = side.client._transfers.guard.crew
    crew.reap()
    return crew.stuck == 0


def patient(side: Side) -> None:
    """Give the calls of a client to come all the time that a busy machine may take."""
    side.client._deadline_s = 10.0


def page_bytes(side: Side) -> int:
    """Return the staging that one page takes to load."""
    return side.client._lanes[0].read.page_bytes


def io_pid(side: Side) -> int:
    """Return the process that a client with ``io="process"`` started."""
    process = side.client._transfers.guard.crew._dismiss.__self__._process  # type: ignore[attr-defined]
    assert process is not None
    return int(process.pid)


def meter(side: Side, name: str, **labels: str) -> float:
    """Return the value of a meter, 0 if it never spoke; of all labels that are not given."""
    return sum(
        sample.value
        for sample in side.client.meters.read()
        if sample.name == name and labels.items() <= dict(sample.labels).items()
    )


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not, once its last thread is gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int | None = None) -> set[int]:
    """Return the processes whose parent is ``pid``, this one by default."""
    parent, found = pid or os.getpid(), set[int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent:
            found.add(int(path.parent.name))
    return found


def left() -> dict[str, object]:
    """Return what must be as it was: threads, descriptors, processes and shared memory."""
    descriptors: Counter[str] = Counter()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            descriptors[re.sub(r"\d+", "#", str(path.readlink()))] += 1
    maps = Path("/proc/self/maps").read_text()
    return {
        "threads": sum(one.name.startswith("unikv") for one in threading.enumerate()),
        "descriptors": {k: n for k, n in descriptors.items() if "/proc/" not in k},
        "children": children(),
        "mapped": len(re.findall(r"memfd:unikv", maps)),
        "shm": {p.name for p in Path("/dev/shm").iterdir() if re.match("torch|psm|sem", p.name)},
    }


@contextmanager
def nothing_left(
    seconds: float = 5.0, *, unless: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Assert that a block leaves no thread, descriptor, process or shared memory."""
    gc.collect()
    before = left()
    yield
    if unless():
        return
    end = time.monotonic() + seconds
    while True:
        gc.collect()
        after = left()
        if all(_within(after[name], before[name]) for name in before):
            return
        if time.monotonic() > end:
            changes = {n: (before[n], after[n]) for n in before if before[n] != after[n]}
            raise AssertionError(f"left behind, as it was and is: {changes}")
        time.sleep(0.02)


def _within(after: object, before: object) -> bool:
    """Tell whether nothing came to what was there; something may have gone."""
    if isinstance(after, dict) and isinstance(before, dict):
        return all(count <= before.get(name, 0) for name, count in after.items())
    if isinstance(after, set) and isinstance(before, set):
        return after <= before
    if isinstance(after, int) and isinstance(before, int):
        return after <= before
    return after == before
