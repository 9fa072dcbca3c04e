"""Ranking: which pages of a sample go first. It opens no file.

The older half of the sample, by when they were last requested, is eligible, and with it what is
hardly younger: a prefix is requested within a moment and shall not be cut by a clock's tick. Of the
sample an eighth goes: pages that lie deep in their sequence and are old, where depth weighs a
little more. So a prefix shrinks from its tail, the more the older it gets: a page without its
predecessors is of no use to anybody.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from unikv.backends.file_evict_look import Page

_ELIGIBLE = 2  # one of so many pages
_GOES = 8
_AGE_WEIGHT = 0.75  # of the rank by age against the rank by depth; below 1 the tail goes first
_SAME_AGE = 10  # ages that differ by one part of so many are taken as equal
_SAME_MOMENT_NS = 10**8


def choose(
    pages: Iterable[Page], depth_of: Callable[[Page], int | None], now_ns: int
) -> tuple[Sequence[Page], Sequence[Page]]:
    """Return the pages of a sample to evict, in order, and those that are next in line.

    Args:
        pages: the sample.
        depth_of: tells the place of a page in its sequence, None where nobody knows: such a page
            goes by its age alone. It is asked of eligible pages only.
        now_ns: what time it is.
    """
    by_age = sorted(pages, key=lambda page: page.requested)
    if not by_age:
        return [], []
    half = -(-len(by_age) // _ELIGIBLE)
    last = by_age[half - 1].requested
    last += max((now_ns - last) // _SAME_AGE, _SAME_MOMENT_NS)
    while half < len(by_age) and by_age[half].requested <= last:
        half += 1
    depths = [depth_of(page) for page in by_age[:half]]
    ranked = sorted(depth for depth in depths if depth is not None)
    scores: list[tuple[float, int]] = []
    for place, depth in enumerate(depths):
        age = 1 - place / half
        deep = age if depth is None else bisect_right(ranked, depth) / len(ranked)
        scores.append((deep + _AGE_WEIGHT * age, -place))
    scores.sort(reverse=True)
    order = [by_age[-place] for _, place in scores]
    count = -(-len(by_age) // _GOES)
    return order[:count], order[count:]
