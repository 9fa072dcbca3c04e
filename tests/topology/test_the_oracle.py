"""The oracle itself: its numbers tell their places, its payloads have DESIGN's order of axes."""

from itertools import pairwise

import numpy as np
import pytest

from tests.topology.models import MODELS, common_cut, finest_cut, ragged_cut
from tests.topology.oracle import POISON, Cut, Model, cells, numbers, payload, places

PAGES = 3


@pytest.mark.parametrize("name", MODELS)
def test_every_number_is_another_and_none_is_poison(name: str) -> None:
    every = np.concatenate([part.ravel() for part in numbers(MODELS[name], PAGES)])
    assert len(np.unique(every)) == len(every)
    assert every.min() > 0 > POISON


@pytest.mark.parametrize("cut", [common_cut, finest_cut, ragged_cut])
@pytest.mark.parametrize("name", MODELS)
def test_a_payload_is_layer_part_token_head_dim(name: str, cut: object) -> None:
    assert callable(cut)
    model, grid = MODELS[name], cut(name)
    seen = 0
    for cell in cells(model, grid):
        found = places(np.frombuffer(payload(model, cell, PAGES, 1), dtype=np.int32))
        component, layers, parts, heads, rows, dims = found.T
        order = np.stack([layers, parts, rows, heads, dims], axis=1).tolist()
        assert all(a < b for a, b in pairwise(order))
        assert set(component) == {0}
        assert set(layers) == set(cell.layers)
        assert set(heads) == set(cell.heads)
        assert {row - model.page_rows for row in rows} == set(cell.rows)
        assert set(parts) == set(range(len(model.dims)))
        seen += len(found)
    assert seen == numbers(model, PAGES)[0][:, 0].size // model.dims[0] * sum(model.dims)


def test_the_parts_of_a_small_page_are_spelled_out() -> None:
    model, cut = Model(2, 2, (1, 2), page=4), Cut((0, 1, 2), 2, 2, 2)
    assert [cell.suffix for cell in cells(model, cut)] == [
        "L0-1_H0_T0",
        "L0-1_H0_T1",
        "L1-2_H0_T0",
        "L1-2_H0_T1",
    ]
    found = places(np.frombuffer(payload(model, cells(model, cut)[3], 1, 0), dtype=np.int32))
    k = [(0, 1, 0, head, token, 0) for token in (2, 3) for head in (0, 1)]
    v = [(0, 1, 1, head, token, d) for token in (2, 3) for head in (0, 1) for d in (0, 1)]
    assert found.tolist() == [list(place) for place in k + v]
