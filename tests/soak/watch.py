"""Watch: how the processes of a soak grow, and how folder B keeps its bound. It stops nobody."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from statistics import median
from time import monotonic
from typing import NamedTuple

from tests.soak.processes import Process, Size, beneath, measure
from tests.soak.universe import CHUNKS, HEADS, NAMESPACE, Path
from unikv.backends.file import FileStore
from unikv.grid import Grid

WARM_S = 45.0
"""Age at which a process is taken to have reached its size, in a long soak."""

MORE_MB = 24.0
MORE_DESCRIPTORS = 16
MORE_THREADS = 16
"""What a process may grow from then on: the allocator's noise, and two crews of eight, which are
hired when they are needed. A leak is more in ten minutes; what is left at the end is told exactly.
"""

MOST_DESCRIPTORS = 64
MOST_THREADS = 48
"""What no process ever has more of, however short it lives: two clients of 4 movers and 8 workers,
and of what a deadline parked as many.
"""

BOUND = 0.05
"""By which share usage may differ from the bound."""

TAIL = 0.8
"""Share of the pages in B, at least, that all pages before them are still there for."""


class Growth(NamedTuple):
    """What a process held once warm, and at its end."""

    name: str
    age_s: float
    warm: Size
    end: Size

    @property
    def problems(self) -> list[str]:
        """Return what grew."""
        most = (MORE_MB, MORE_DESCRIPTORS, MORE_THREADS, 1)
        return [
            f"{self.name} grew in {self.age_s:.0f} s from {was:.0f} to {now:.0f} {what}"
            for what, was, now, limit in zip(Size._fields, self.warm, self.end, most, strict=True)
            if now > was + limit
        ]


@dataclass
class Sizes:
    """Sizes of processes over time, by what they are called."""

    warm_s: float
    _samples: dict[str, list[tuple[float, Size]]] = field(default_factory=dict)

    def take(self, workers: dict[str, int], processes: Sequence[Process]) -> None:
        """Measure workers, given by name and number, and all that they started."""
        now, found = monotonic(), list(processes)
        names = dict(workers)
        for name, pid in workers.items():
            for one in beneath(pid, found):
                names[f"{name}: {one.role} {one.pid}"] = one.pid
        names |= {f"host {one.pid}": one.pid for one in found if one.role == "host"}
        for name, pid in names.items():
            size = measure(pid, found)
            if size is not None:
                self._samples.setdefault(name, []).append((now, size))

    def most(self) -> Size:
        """Return the most that any process ever held."""
        sizes = [size for samples in self._samples.values() for _, size in samples]
        return Size(*(max(column) for column in zip(*sizes, strict=True)))

    def problems(self) -> list[str]:
        """Return what held or grew too much."""
        most = self.most()
        found = [problem for one in self.growth() for problem in one.problems]
        if most.descriptors > MOST_DESCRIPTORS or most.threads > MOST_THREADS:
            found.append(f"a process had {most.descriptors} descriptors, {most.threads} threads")
        return found

    def growth(self) -> list[Growth]:
        """Return how each process grew that lived twice as long as it takes to be warm."""
        found = []
        for name, samples in self._samples.items():
            begun, ended = samples[0][0], samples[-1][0]
            if ended - begun < 2 * self.warm_s:
                continue
            span = min(self.warm_s, 20.0)
            warm = [size for at, size in samples if 0 <= at - begun - self.warm_s < span]
            end = [size for at, size in samples if ended - at < span]
            if warm and end:
                found.append(Growth(name, ended - begun, _typical(warm), _typical(end)))
        return found


def _typical(sizes: Sequence[Size]) -> Size:
    """Return the size that a process mostly had."""
    return Size(median(size.rss_mb for size in sizes), *_middle(sizes))


def _middle(sizes: Sequence[Size]) -> tuple[int, int, int]:
    columns = list(zip(*sizes, strict=True))[1:]
    descriptors, threads, children = (sorted(column)[len(column) // 2] for column in columns)
    return int(descriptors), int(threads), int(children)


@dataclass
class Fill:
    """How full folder B is, and what of it is of use; seen from outside, file by file."""

    root: FilePath
    bound: int
    paths: list[Path]
    full_at: float | None = None
    shares: list[float] = field(default_factory=list)
    whole: int = 0  # halves of pages, over all looks
    usable: int = 0  # of these, that all before them are there for
    partly: list[int] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)  # looks at which the bound was not kept

    def __post_init__(self) -> None:
        chunks = Grid.of(NAMESPACE).chunks
        self._tails = [  # of the keys of each half
            [f"_{NAMESPACE.digest}_{chunk.suffix}" for chunk in chunks if chunk.group == half]
            for half in range(HEADS)
        ]
        assert sum(map(len, self._tails)) == CHUNKS

    def look(self, *, at_prefixes: bool, note: str = "") -> None:
        """Measure how full it is, and now and then what of it is of use.

        ``note`` says what was done last: it is told where the bound is not kept.
        """
        store = FileStore(self.root)
        share = store.usage().room / self.bound
        if self.full_at is None and share > 1 - BOUND:
            self.full_at = monotonic()
        if self.full_at is not None:
            self.shares.append(share)
            if abs(share - 1) > BOUND:
                self.beyond.append(f"{share:.1%} {note}")
            if at_prefixes:
                self._look_at_prefixes(frozenset(entry.key for entry in store.list()))
        store.close()

    def _look_at_prefixes(self, there: frozenset[str]) -> None:
        partly = 0
        for tails in self._tails:
            seen: set[str] = set()
            for path in self.paths:
                led = True
                for page in path.pages:
                    chunks = sum(page + tail in there for tail in tails)
                    whole = chunks == len(tails)
                    led = led and whole
                    if page not in seen:
                        seen.add(page)
                        self.whole += whole
                        self.usable += led
                        partly += 0 < chunks < len(tails)
        self.partly.append(partly)

    @property
    def problems(self) -> list[str]:
        """Return what was not kept."""
        if not self.shares:
            return ["B was never full: nothing was evicted"]
        found = []
        least, most = min(self.shares), max(self.shares)
        if most > 1 + BOUND or least < 1 - BOUND:
            found.append(
                f"B: usage went from {least:.1%} to {most:.1%} of the bound once full, in "
                f"{len(self.beyond)} of {len(self.shares)} looks beyond 5 %: {self.beyond[:8]}"
            )
        if self.whole and self.usable / self.whole < TAIL:
            found.append(
                f"B: of the pages there only {self.usable / self.whole:.1%} have all before them"
            )
        return found


def add_up(told: Sequence[dict[str, dict[str, int]]], part: str) -> Counter[str]:
    """Add up one part of what workers told."""
    total: Counter[str] = Counter()
    for one in told:
        total.update(one[part])
    return total
