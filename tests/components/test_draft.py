"""Draft: which buffers a layer carries, what a drafter asks for, and slots that follow others."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.coverage import storable_pages
from unikv.draft import (
    Drafter,
    derive_slot,
    draft_layer_ids,
    lookahead,
    pack_layers,
    retained,
)
from unikv.errors import SpecError


def layers(count: int) -> dict[int, int]:
    return dict(enumerate(range(count)))


@given(st.data(), st.integers(1, 64))
def test_draft_depth_d_rides_with_target_layer_d(data: st.DataObject, target: int) -> None:
    drafts = data.draw(st.integers(0, target))
    listed = [f"target {n}" for n in range(target)] + [f"draft {n}" for n in range(drafts)]
    packed = pack_layers(layers(target), drafts)
    carried = {layer: [listed[buffer] for buffer in some] for layer, some in packed.items()}
    for layer in range(target):
        rider = [f"draft {layer}"] if layer < drafts else []
        assert carried[layer] == [f"target {layer}", *rider]
    assert sorted(buffer for some in packed.values() for buffer in some) == [
        *range(target + drafts)
    ]


def test_sixty_one_layers_carry_one_draft_layer_with_the_first() -> None:
    packed = pack_layers(layers(61), 1)
    assert packed[0] == (0, 61)
    assert packed[1] == (1,)
    assert len(packed) == 61
    assert draft_layer_ids(61, 1) == (61,)


def test_layers_without_a_buffer_are_left_out_behind_the_drafts() -> None:
    assert pack_layers({0: 0, 1: 1, 5: 2}, 2) == {0: (0, 3), 1: (1, 4), 5: (2,)}


def test_more_draft_layers_than_target_layers_are_refused() -> None:
    with pytest.raises(SpecError, match="3 draft layers ride with 2 target layers: want 2 or"):
        pack_layers(layers(2), 3)


@pytest.mark.parametrize(
    ("buffers", "depth"), [({1: 0, 2: 1}, 0), ({0: 0, 2: 1}, 1)], ids=["missing", "sparse"]
)
def test_a_depth_whose_target_layer_has_no_buffer_is_refused(
    buffers: dict[int, int], depth: int
) -> None:
    with pytest.raises(SpecError, match=f"draft depth {depth} rides with target layer {depth}"):
        pack_layers(buffers, 2)


@pytest.mark.parametrize("buffers", [{0: 1, 1: 0}, {0: 0, 1: 2}, {0: 0, 1: 0}], ids=str)
def test_buffers_out_of_order_are_refused(buffers: dict[int, int]) -> None:
    with pytest.raises(SpecError, match="want 0 to 1 in order"):
        pack_layers(buffers, 1)


def test_the_order_in_which_layers_are_mapped_changes_nothing() -> None:
    assert pack_layers({1: 1, 0: 0}, 2) == pack_layers({0: 0, 1: 1}, 2)


def test_lookahead_and_retention_are_the_most_of_any_drafter() -> None:
    drafters = [
        Drafter("mtp", ("draft",), lookahead=2, retained=1),
        Drafter("ngram", (), lookahead=5),
        Drafter("eagle", ("eagle",), retained=3),
    ]
    assert lookahead(drafters) == 5
    assert retained(drafters) == 3
    assert lookahead([]) == retained([]) == 0


@given(st.integers(0, 300), st.integers(0, 9), st.integers(1, 32))
def test_a_save_amid_speculation_stores_accepted_tokens_alone(
    accepted: int, drafted: int, page_tokens: int
) -> None:
    drafters = [Drafter("mtp", ("draft",), lookahead=drafted)]
    pages = storable_pages(accepted + drafted, page_tokens, lookahead(drafters))
    assert pages * page_tokens <= accepted < (pages + 1) * page_tokens


@pytest.mark.parametrize("wrong", [-1, True, 1.5, None])
def test_a_drafter_with_a_number_below_none_is_refused(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"lookahead .* of drafter 'mtp': want"):
        Drafter("mtp", ("draft",), lookahead=wrong)
    with pytest.raises(SpecError, match=r"retained .* of drafter 'mtp': want"):
        Drafter("mtp", ("draft",), retained=wrong)


@pytest.mark.parametrize("wrong", ["draft", ["draft"], (1,), None], ids=str)
def test_a_drafter_names_its_components_in_a_tuple(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"want a tuple of names, such as \('draft',\)"):
        Drafter("mtp", wrong)


@given(st.integers(0, 500), st.integers(1, 64), st.integers(1, 64), st.data())
def test_slots_that_follow_lie_in_the_page_of_their_source(
    block: int, source_rows: int, rows: int, data: st.DataObject
) -> None:
    slot = block * source_rows + data.draw(st.integers(0, source_rows - 1))
    derived = [derive_slot(slot, row, source_rows, rows) for row in range(rows)]
    assert derived == list(range(block * rows, block * rows + rows))


def test_B20_the_row_of_an_indexer_page_follows_from_the_slots_of_its_tokens() -> None:
    assert derive_slot(70, 0, 64, 1) == 1
    slots = np.arange(128, 192)  # page 2 of the source
    assert np.array_equal(derive_slot(slots, 0, 64, 1), np.full(64, 2))
    assert np.array_equal(derive_slot(slots, slots % 64, 64, 64), slots)
