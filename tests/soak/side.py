"""Side: one worker's client of one folder, with what is to be true of every report. It calls none.

Whatever is found wrong is a `BrokenError`.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from time import monotonic
from typing import NamedTuple

from tests.soak.ledger import Ledger
from tests.soak.pool import Lane, Pool
from tests.soak.universe import CHUNKS, HEADS, Path
from unikv import Client
from unikv.reports import LoadReport, SaveReport

SETTLED_S = 3.0
"""Seconds behind a storm from which on nothing may look damaged in A."""

RECOVERED_S = 8.0
"""... from which on calls have to reach their store: a breaker looks again after 5 s at most."""


class BrokenError(Exception):
    """A promise was broken."""


@dataclass
class Weather:
    """Whether faults befall: ``calm`` is a file with the time at which the last storm ended."""

    calm: FilePath

    def calm_since(self) -> float | None:
        """Return when the last storm ended, None if one lasts."""
        try:
            return float(self.calm.read_text())
        except FileNotFoundError:
            return None

    def is_settled(self, begun: float, seconds: float = SETTLED_S) -> bool:
        """Return whether the last storm was well over at some moment, and none came since."""
        calm = self.calm_since()
        return calm is not None and begun > calm + seconds


class Known(NamedTuple):
    """What is known when a load begins."""

    stored: Sequence[bool]  # of each page: whether all that the rank reads was reported stored
    begun: float


@dataclass
class Side:
    """A client of one folder with its pool.

    Args:
        name: "A", where what was reported stored may not be missing, or "B".
        client: the client.
        pool: its pool.
        paths: sequences of the folder.
        come: how many of them are used by now; the last of these are used most.
        ledger: what was reported stored; None in folder B.
        weather: whether faults befall.
        counts: where outcomes are counted.
        rng: where choices come from.
    """

    name: str
    client: Client
    pool: Pool
    paths: list[Path]
    come: Callable[[], int]
    ledger: Ledger | None
    weather: Weather
    counts: Counter[str]
    rng: random.Random
    longest: dict[str, float] = field(default_factory=dict)

    def choose(self) -> Path:
        """Return a sequence, some much more often than others; a quarter of them cut short."""
        come = self.come()
        path = self.paths[come - 1 - int(come * self.rng.random() ** 2)]
        if self.rng.random() < 0.25:
            return path.cut(0, self.rng.randint(1, len(path.ids)))
        return path

    def choose_part(self) -> tuple[int, Path]:
        """Return a sequence or, where holes do no harm, a part of one; and where it begins."""
        path = self.choose()
        start = 0
        if self.ledger is not None and self.rng.random() < 0.25:
            start = self.rng.randrange(len(path.ids))
        return start, path.cut(start, len(path.ids))

    def filled(self, path: Path) -> Lane:
        """Return a lane that holds a sequence."""
        lane = self.pool.take(path.ids)
        lane.fill()
        return lane

    def took(self, call: str, begun: float) -> None:
        """Note how long a call took."""
        self.longest[call] = max(self.longest.get(call, 0.0), monotonic() - begun)

    def saved(self, path: Path, report: SaveReport) -> None:
        """Note what a save reported."""
        objects = len(path.ids) * CHUNKS * len(self.pool.heads) // HEADS
        said = report.stored + report.existed + len(report.failed)
        if said != objects or (report.ok and report.pages != len(path.ids)):
            raise BrokenError(
                f"a save of {len(path.ids)} pages says {report.pages}, and of {objects} objects "
                f"that {report.stored} are stored, {report.existed} existed and "
                f"{len(report.failed)} failed"
            )
        lost = {failure.page for failure in report.failed}
        if lost and self.weather.is_settled(monotonic() - 1):
            self.counts[f"why {self.name} save: {_reason(report.failed[0].reason)}"] += 1
        if self.ledger is not None:
            kept = [number for at, number in enumerate(path.ids) if at not in lost]
            self.ledger.add(kept, self.pool.heads)
        outcome = "whole" if not lost else "none" if len(lost) == len(path.ids) else "part"
        self.counts[f"{self.name} save {outcome}"] += 1
        self.counts[f"{self.name} objects stored"] += report.stored
        self.counts[f"{self.name} bytes written"] += report.bytes_written

    def known(self, path: Path) -> Known:
        """Return what is known before a load."""
        stored = self.ledger.read() if self.ledger is not None else set()
        heads = self.pool.heads
        known = [all((number, half) in stored for half in heads) for number in path.ids]
        return Known(known, monotonic())

    def loaded(self, path: Path, report: LoadReport, known: Known, call: str = "load") -> None:
        """Check what a load reported; what it left in the pool is checked already."""
        pages, counts = len(path.ids), self.counts
        counts[f"{self.name} bytes read"] += report.bytes_read
        counts[f"{self.name} pages loaded"] += report.pages
        counts[f"{self.name} pages prefetched"] += report.prefetched
        if (report.stopped is None) != (report.pages == pages):
            raise BrokenError(f"a {call} of {pages} pages got {report.pages}: {report.stopped}")
        recovered = self.weather.is_settled(known.begun, RECOVERED_S)
        counts["recovered loads"] += recovered
        if report.stopped is None:
            counts[f"{self.name} {call} whole"] += 1
            return
        kind = report.failed[0].kind if report.failed else "full"
        counts[f"{self.name} {call} {kind}"] += 1
        counts["recovered loads in error"] += recovered and kind == "error"
        settled = self.weather.is_settled(known.begun)
        if settled and kind != "missing":
            counts[f"{self.name} {call} {kind} in calm"] += 1
            counts[f"why {self.name} {call}: {_reason(report.stopped)}"] += 1
        if self.name != "A" or not report.failed:
            return
        failure = report.failed[0]
        if kind == "missing" and known.stored[failure.page]:
            raise BrokenError(
                f"page {path.ids[failure.page]} was reported stored and is missing: "
                f"{report.stopped}"
            )
        if kind == "damaged" and settled:
            raise BrokenError(f"damaged, though no fault befell: {report.stopped}")


def _reason(text: str) -> str:
    """Return a reason without what differs from case to case."""
    return re.sub(r"[0-9a-f]{16,}|[0-9]+([.][0-9]+)?", "#", text)[:160]
