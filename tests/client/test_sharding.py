"""Sharding: owners and local rows of logical slots, and paths whose pages go round."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unikv.errors import TopologyError
from unikv.sharding import local_row, may_join, owner, rotation

OWNERS = [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
ROWS = [*range(4), *range(4), *range(4, 8), *range(4, 8), *range(8, 12), *range(8, 12)]

sizes = st.integers(1, 9)


def test_the_seeds_example_is_met_slot_by_slot() -> None:
    assert [owner(slot, 4, 2) for slot in range(24)] == OWNERS
    assert [local_row(slot, 4, 2) for slot in range(24)] == ROWS


def test_arrays_of_numpy_and_torch_give_what_ints_give() -> None:
    for slots in (np.arange(24), torch.arange(24), torch.arange(24, dtype=torch.int32)):
        assert owner(slots, 4, 2).tolist() == OWNERS
        assert local_row(slots, 4, 2).tolist() == ROWS
        assert owner(slots, 4, 2).dtype == slots.dtype
    pages = torch.arange(24).view(6, 4)
    assert owner(pages[:, 0], 4, 2).tolist() == [0, 1, 0, 1, 0, 1]
    assert local_row(pages, 4, 2).tolist() == np.array(ROWS).reshape(6, 4).tolist()


def test_the_seeds_tree_finds_its_pages_where_the_figure_has_them() -> None:
    logical = {"A": 2, "B": 3, "C": 4, "D": 5, "E": 6}
    places = {
        name: (owner(q * 64, 64, 2), local_row(q * 64, 64, 2) // 64) for name, q in logical.items()
    }
    assert places == {"A": (0, 1), "C": (0, 2), "E": (0, 3), "B": (1, 1), "D": (1, 2)}
    path = [places[name][0] for name in "ABC"]
    assert may_join(path, [places["D"][0]], 2)
    assert not may_join(path, [places["E"][0]], 2)
    assert may_join(path[:2], [places["E"][0]], 2)


@given(page=sizes, ranks=sizes, slot=st.integers(0, 2**62))
def test_owner_and_row_name_one_slot_and_pages_stay_together(
    page: int, ranks: int, slot: int
) -> None:
    rank, row = owner(slot, page, ranks), local_row(slot, page, ranks)
    assert 0 <= rank < ranks
    logical = (row // page * ranks + rank) * page + row % page  # the inverse
    assert logical == slot
    first = slot - slot % page
    assert owner(first, page, ranks) == rank
    assert local_row(first, page, ranks) == row - slot % page


@given(page=sizes, ranks=sizes, rounds=st.integers(1, 4))
def test_whole_rounds_fill_every_pool_without_a_gap(page: int, ranks: int, rounds: int) -> None:
    slots = np.arange(page * ranks * rounds)
    for rank in range(ranks):
        rows = local_row(slots[owner(slots, page, ranks) == rank], page, ranks)
        assert rows.tolist() == list(range(page * rounds))


@given(ranks=sizes, first=st.integers(0, 8), cut=st.integers(0, 12), pages=st.integers(0, 12))
def test_a_path_that_goes_round_keeps_its_rotation_wherever_it_is_cut(
    ranks: int, first: int, cut: int, pages: int
) -> None:
    path = [(first + page) % ranks for page in range(pages)]
    assert rotation(path, ranks) == (first % ranks if pages else 0)
    prefix, suffix = path[:cut], path[cut:]
    assert may_join(prefix, suffix, ranks)
    if prefix and suffix and ranks > 1:
        turned = [(rank + 1) % ranks for rank in suffix]
        assert not may_join(prefix, turned, ranks)


@given(ranks=st.integers(2, 6), pages=st.integers(2, 9), data=st.data())
def test_one_page_on_a_wrong_rank_is_named(ranks: int, pages: int, data: st.DataObject) -> None:
    path = [page % ranks for page in range(pages)]
    at = data.draw(st.integers(1, pages - 1))
    path[at] = (path[at] + data.draw(st.integers(1, ranks - 1))) % ranks
    with pytest.raises(TopologyError, match=rf"page {at} .* rank {path[at]}: want rank"):
        rotation(path, ranks)


def test_owners_that_are_no_ranks_do_not_go_round() -> None:
    for owners in ([5, 0], [-1, 0], [2]):
        with pytest.raises(TopologyError, match="page 0"):
            rotation(owners, 2)
    with pytest.raises(TopologyError):
        may_join([0, 0], [0], 2)
    with pytest.raises(TopologyError):
        may_join([], [1, 1], 2)


def test_paths_of_arrays_go_round_too() -> None:
    table = torch.arange(4, 24).view(5, 4)  # begins on rank 1
    for owners in (owner(table[:, 0], 4, 2), owner(table[:, 0].numpy(), 4, 2)):
        assert rotation(owners, 2) == 1
        assert may_join(owners[:3], owners[3:], 2) is True
        assert may_join(owners[:3], owners[:1], 2) is False
        assert rotation(owners[:0], 2) == 0
        assert may_join(owners[:0], owners, 2) is True
