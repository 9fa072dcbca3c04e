"""Region: where the rows of one tensor lie in memory, in bytes. It knows no tensor library."""

from collections.abc import Sequence
from typing import NamedTuple


class Region(NamedTuple):
    """Rows of ``shape[3]`` bytes, one for each block, token and head, at their own strides."""

    offset: int  # bytes, from the start of a buffer or of memory
    shape: tuple[int, int, int, int]  # blocks, tokens of a block, heads, bytes of a row
    strides: tuple[int, int, int]  # bytes from a block, a token, a head to the next

    @property
    def stop(self) -> int:
        """The first byte behind the last row."""
        return self.offset + sum(stride * (size - 1) for size, stride in self.steps) + self.shape[3]

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Size and stride of each axis that has more than one entry."""
        axes = zip(self.shape[:3], self.strides, strict=True)
        return [(size, stride) for size, stride in axes if size > 1]


def overlaps_itself(region: Region) -> bool:
    """Return whether two rows may share a byte: an axis steps less far than the axes within it."""
    reach = region.shape[3]
    for size, stride in sorted(region.steps, key=lambda step: step[1]):
        if stride < reach:
            return True
        reach += stride * (size - 1)
    return False


def find_overlap(regions: Sequence[Region]) -> tuple[int, int] | None:
    """Return the positions of two regions that share a byte, or None. Exact for interleaved ones.

    K and V on one axis, or layers inside one block, interleave without sharing a byte.
    """
    order = sorted(range(len(regions)), key=lambda i: regions[i].offset)
    open_: list[int] = []
    for i in order:
        open_ = [j for j in open_ if regions[j].stop > regions[i].offset]
        for j in open_:
            if _meet(regions[j], regions[i]):
                return min(i, j), max(i, j)
        open_.append(i)
    return None


def _meet(first: Region, second: Region) -> bool:
    """Return whether a row of one shares a byte with a row of the other."""
    ranges: dict[int, tuple[int, int]] = {}
    for sign, region in ((-1, first), (1, second)):
        for size, stride in region.steps:
            low, high = ranges.get(stride, (0, 0))
            span = sign * (size - 1)
            ranges[stride] = (low + min(span, 0), high + max(span, 0))
    axes = [(stride, *ranges[stride]) for stride in sorted(ranges, reverse=True)]
    return _reach(second.offset - first.offset, axes, first.shape[3], second.shape[3])


def _reach(delta: int, axes: list[tuple[int, int, int]], first: int, second: int) -> bool:
    """Return whether ``delta`` plus whole steps along the axes brings two rows together.

    Rows of ``first`` and ``second`` bytes meet where the second begins less than ``first`` behind
    the first one and less than ``second`` before it.
    """
    if not axes:
        return -second < delta < first
    (stride, low, high), rest = axes[0], axes[1:]
    # Only steps that leave the target within reach of the shorter strides are worth a try.
    least = -second + 1 - delta - sum(s * h for s, _, h in rest)
    most = first - 1 - delta - sum(s * lo for s, lo, _ in rest)
    steps = range(max(low, -(-least // stride)), min(high, most // stride) + 1)
    return any(_reach(delta + step * stride, rest, first, second) for step in steps)
