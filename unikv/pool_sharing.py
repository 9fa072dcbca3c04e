"""Pool sharing: components whose pools lie in the same memory, block by block. It moves no bytes.

Engines with hybrid allocators give layers of several groups one tensor and blocks of one free
list: that is fine as long as no block serves two components at once.
"""

from collections.abc import Sequence
from itertools import combinations

from unikv.errors import PoolError
from unikv.lane import Lane, Selection
from unikv.pool_layouts import region_of
from unikv.regions import find_overlap


def find_shared(lanes: Sequence[Lane]) -> list[tuple[int, int]]:
    """Return the pairs of lanes whose pools share memory.

    Raises:
        PoolError: two pools overlap and their blocks are not the same bytes, so that block ids
            cannot tell whether two pages collide.
    """
    shared = []
    for a, b in combinations(range(len(lanes)), 2):
        views = [[view for layer in lanes[n].pool.parts for view in layer] for n in (a, b)]
        mine = [region_of(view) for view in views[0]]
        both = [*mine, *(region_of(view) for view in views[1])]
        found = find_overlap(both)
        if found is None:
            continue
        one, other = both[found[0]], both[found[1]]
        if one.shape[0] != other.shape[0] or one.strides[0] != other.strides[0]:
            raise PoolError(
                f"the pools of components {lanes[a].name!r} and {lanes[b].name!r} share memory and "
                f"cut it into blocks of {one.strides[0]} and {other.strides[0]} bytes: want the "
                "same blocks, or memory of their own"
            )
        shared.append((a, b))
    return shared


def check_blocks(
    lanes: Sequence[Lane], selections: Sequence[Selection], shared: Sequence[tuple[int, int]]
) -> None:
    """Raise `PoolError` where one block is named for pages of two components that share memory."""
    for a, b in shared:
        blocks = [set(selections[n].places.flatten().tolist()) for n in (a, b)]
        if again := blocks[0] & blocks[1]:
            raise PoolError(
                f"components {lanes[a].name!r} and {lanes[b].name!r} share memory and both name "
                f"block {min(again)}: want a block each, since one cannot hold both"
            )
