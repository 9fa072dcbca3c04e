"""Overlaps of strided regions, against the sets of their bytes."""

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from unikv.regions import Region, find_overlap, overlaps_itself


@st.composite
def any_region(draw: st.DrawFn) -> Region:
    """Draw a region; half of them have axes that step over each other in some order."""
    shape = draw(
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
    )
    strides = draw(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 12)))
    if draw(st.booleans()):
        nested, reach = list(strides), shape[3]
        for axis in draw(st.permutations(range(3))):
            nested[axis] = reach + draw(st.integers(0, 6))
            reach += nested[axis] * (shape[axis] - 1)
        strides = nested[0], nested[1], nested[2]
    return Region(draw(st.integers(0, 60)), shape, strides)


def rows(region: Region) -> list[set[int]]:
    starts = (
        region.offset + sum(i * step for i, step in zip(at, region.strides, strict=True))
        for at in product(*map(range, region.shape[:3]))
    )
    return [set(range(start, start + region.shape[3])) for start in starts]


def bytes_of(region: Region) -> set[int]:
    return set().union(*rows(region))


@given(any_region(), any_region())
def test_two_regions_overlap_where_their_bytes_do(first: Region, second: Region) -> None:
    assume(not overlaps_itself(first) and not overlaps_itself(second))
    shared = bytes_of(first) & bytes_of(second)
    assert find_overlap([first, second]) == ((0, 1) if shared else None)


@given(any_region())
def test_a_region_that_passes_has_a_byte_for_each_row(region: Region) -> None:
    assert region.stop == max(bytes_of(region)) + 1
    if not overlaps_itself(region):
        assert len(bytes_of(region)) == sum(map(len, rows(region)))


@pytest.mark.parametrize("strides", [(0, 8, 4), (32, 4, 4), (8, 16, 4), (32, 16, 3)], ids=str)
def test_rows_on_top_of_each_other_are_found(strides: tuple[int, int, int]) -> None:
    assert overlaps_itself(Region(0, (3, 2, 2, 4), strides))


def test_interleaved_layers_of_one_block_do_not_overlap() -> None:
    block = 61 * 16 * 64
    layers = [Region(i * 16 * 64, (5000, 16, 1, 64), (block, 64, 64)) for i in range(61)]
    assert find_overlap(layers) is None
    moved = layers[40]._replace(offset=layers[40].offset + 63)
    assert find_overlap([*layers[:40], moved, *layers[41:]]) == (40, 41)
