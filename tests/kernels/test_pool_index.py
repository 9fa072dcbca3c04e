"""Slots and block tables: what is taken, what is refused, and in which words."""

from typing import Any

import numpy as np
import pytest
import torch

from unikv.errors import PoolError
from unikv.paged import PagedCache


def pool(blocks: int, tokens: int) -> PagedCache:
    return PagedCache.rows([torch.zeros(blocks, tokens, 4, dtype=torch.bfloat16)])


@pytest.mark.parametrize(
    "form",
    [
        [[4, 0], [2, 7]],
        ((4, 0), (2, 7)),
        torch.tensor([[4, 0], [2, 7]]),
        torch.tensor([[4, 0], [2, 7]], dtype=torch.int32),
        torch.tensor([[4, 2], [0, 7]]).t(),
        np.array([[4, 0], [2, 7]]),
    ],
    ids=["lists", "tuples", "int64", "int32", "transposed", "numpy"],
)
def test_a_table_becomes_int64_of_its_own(form: Any) -> None:  # Any: numpy is no Sequence
    index = pool(8, 16).index(form, 32)
    assert index.dtype == torch.int64
    assert index.is_contiguous()
    assert index.tolist() == [[4, 0], [2, 7]]
    if isinstance(form, torch.Tensor):
        form.fill_(99)
        assert index.tolist() == [[4, 0], [2, 7]]


def test_slots_of_whole_blocks_become_blocks() -> None:
    slots = [[*range(12, 16), *range(4, 8)], [*range(8, 12), *range(4)]]
    assert pool(4, 4).index(slots, 8, unique=True).tolist() == [[3, 1], [2, 0]]


@pytest.mark.parametrize(
    "slots",
    [[], torch.empty(0, 2, dtype=torch.int32), torch.empty(0, dtype=torch.int64)],
    ids=["list", "shaped", "flat"],
)
def test_no_pages_give_an_empty_index(slots: Any) -> None:  # Any: forms of nothing
    assert pool(4, 16).index(slots, 32, unique=True).shape == (0, 2)


REFUSED: dict[str, tuple[Any, bool, str]] = {
    "one axis": ([1, 2], False, r"torch.int64 and shape \(2,\): want int64 or int32, one row"),
    "three axes": ([[[1]]], False, r"shape \(1, 1, 1\)"),
    "width": ([[1, 2, 3]], False, r"shape \(1, 3\): want \(pages, 8\) or \(pages, 2\)"),
    "floats": ([[1.0, 2.0]], False, "torch.float32 and shape"),
    "bools": ([[True, False]], False, "torch.bool"),
    "int16": (torch.ones(1, 2, dtype=torch.int16), False, "torch.int16"),
    "ragged": ([[1, 2], [3]], False, "no table of whole numbers"),
    "words": ([["1", "2"]], False, "no table of whole numbers"),
    "huge": ([[1, 2**64]], False, "no table of whole numbers"),
    "none": (None, False, "no table of whole numbers"),
    "below": ([[1, 2], [3, -1]], False, "page 1, entry 1: block -1: want 0 to 9"),
    "above": ([[1, 2], [10, 3]], False, "page 1, entry 0: block 10: want 0 to 9"),
    "slot above": ([[*range(36, 44)]], False, "page 0, entry 4: slot 40: want 0 to 39"),
    "inside a block": ([[*range(1, 9)]], False, "page 0, entry 0: slot 1: want 0, since pages"),
    "shuffled in a block": ([[0, 1, 3, 2, *range(4, 8)]], False, "entry 2: slot 3: want 2"),
    "twice in a page": ([[1, 2], [3, 3]], True, "page 1 names 3 twice: want a place for each row"),
    "in two pages": ([[1, 2], [4, 5], [6, 1]], True, "pages 0 and 2 both name 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_table_of_the_pool_is_refused(name: str) -> None:
    slots, write, message = REFUSED[name]
    with pytest.raises(PoolError, match=message):
        pool(10, 4).index(slots, 8, unique=write)


def test_reading_one_block_for_two_pages_is_fine() -> None:
    assert pool(10, 4).index([[1, 2], [1, 3]], 8).tolist() == [[1, 2], [1, 3]]


@pytest.mark.parametrize("rows", [0, 6, -4])
def test_pages_that_are_no_whole_blocks_are_refused(rows: int) -> None:
    with pytest.raises(PoolError, match=f"pages of {rows} rows: want a multiple of the block's 4"):
        pool(10, 4).index([[1]], rows)


def test_a_rank_without_layers_takes_any_slots() -> None:
    assert PagedCache.slots([], []).index([[7, 900]], 2, unique=True).tolist() == [[7, 900]]
