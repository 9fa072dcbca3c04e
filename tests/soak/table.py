"""Table: what became of a soak, as text. It measures nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.soak.processes import Size
from tests.soak.watch import Fill, Growth, add_up

MOST_BROKEN = 40


@dataclass(frozen=True)
class Result:
    """What became of a soak."""

    seconds: float
    last_seconds: float  # of the last pass
    seed: int
    told: Sequence[dict[str, Any]]  # by each worker in each of its lives
    faults: Mapping[str, int]
    storms: int
    kills: Mapping[str, int]
    fill: Fill
    growth: Sequence[Growth]
    most: Size  # of any process at any time
    last: Mapping[str, int]
    broken: Sequence[str]


def render(result: Result) -> str:
    """Return the table."""
    counts = add_up(result.told, "counts")
    longest = {call: round(seconds, 2) for call, seconds in longest_of(result.told).items()}
    lines = [
        f"soak of {result.seconds:.0f} s, seed {result.seed}: {len(result.told)} lives of workers",
        *_calls(counts),
        *_moved(counts),
        _line("meters", add_up(result.told, "meters")),
        _line("longest call, s", longest),
        _line(f"faults in {result.storms} storms", result.faults),
        _line("killed", result.kills),
        *_filled(result.fill),
        _line(f"last pass of {result.last_seconds:.0f} s", result.last),
        *_sizes(result.growth),
        f"most in any process: {_held(result.most)}",
        f"{len(result.broken)} broken promises" if result.broken else "no promise was broken",
        *(f"  {one}" for one in result.broken[:MOST_BROKEN]),
    ]
    return "\n".join(lines) + "\n"


def longest_of(told: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return how long each call took at most, of what workers told."""
    longest: dict[str, float] = {}
    for one in told:
        for call, seconds in one["longest"].items():
            longest[call] = max(longest.get(call, 0.0), seconds)
    return longest


def _line(name: str, counts: Mapping[str, float]) -> str:
    return f"{name}: " + ", ".join(f"{key} {n}" for key, n in sorted(counts.items()))


def _calls(counts: Counter[str]) -> Iterable[str]:
    for folder in "AB":
        for call in ("save", "load", "stream", "prefetch", "match", "cancel"):
            start = f"{folder} {call} "
            own = {key.removeprefix(start): n for key, n in counts.items() if key.startswith(start)}
            yield _line(f"{folder} {call}", own)
    for why, n in Counter({k: n for k, n in counts.items() if k.startswith("why")}).most_common(12):
        yield f"in calm {n} times {why.removeprefix('why ')}"
    rest = {k: n for k, n in counts.items() if k[:2] not in ("A ", "B ") and k[:4] != "why "}
    yield _line("other", rest)


def _moved(counts: Counter[str]) -> Iterable[str]:
    for folder in "AB":
        wrote, read = (counts[f"{folder} bytes {verb}"] / 1e6 for verb in ("written", "read"))
        pages, fetched = (counts[f"{folder} pages {how}"] for how in ("loaded", "prefetched"))
        yield (
            f"{folder}: {wrote:.0f} MB written, {read:.0f} MB read, {pages} pages loaded "
            f"({fetched} of them prefetched)"
        )


def _filled(fill: Fill) -> Iterable[str]:
    if fill.shares:
        yield (
            f"B usage of its bound: {min(fill.shares):.1%} to {max(fill.shares):.1%} in "
            f"{len(fill.shares)} looks; led by all before them: "
            f"{fill.usable / max(fill.whole, 1):.1%} of pages; pages in part: {max(fill.partly)}"
        )


def _sizes(growth: Sequence[Growth]) -> Iterable[str]:
    for one in growth:
        yield f"{one.name} in {one.age_s:.0f} s: from {_held(one.warm)} to {_held(one.end)}"


def _held(size: Size) -> str:
    return (
        f"RSS {size.rss_mb:.1f} MB, {size.descriptors} descriptors, {size.threads} threads, "
        f"{size.children} children"
    )
