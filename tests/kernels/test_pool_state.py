"""Pools of states: tensors that are not what the spec's parts say are refused, by name."""

from typing import Any

import pytest
import torch

from unikv import KVSpec, PagedCache, StatePart
from unikv.errors import PoolError

SPEC = KVSpec.state(
    layers=2,
    parts=[StatePart("conv", "bfloat16", (8, 3), (4, 4)), StatePart("ssm", "float32", (4,))],
    page_tokens=4,
    groups=2,
)


def tensors(**change: Any) -> dict[str, list[torch.Tensor]]:
    good = {
        "conv": [torch.zeros(5, 8, 3, dtype=torch.bfloat16) for _ in range(2)],
        "ssm": [torch.zeros(5, 4) for _ in range(2)],
    }
    return {**good, **change}


def conv(*shape: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype) for _ in range(2)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"conv": conv(5, 3, 3)}, r"\(5, 3, 3\): want \(slots, 4, 3\), axis 1 times the groups"),
        ({"conv": conv(5, 12, 3)}, r"\(5, 12, 3\): want"),
        ({"conv": conv(5, 8, 2)}, r"\(5, 8, 2\): want"),
        ({"conv": conv(0, 8, 3)}, r"\(0, 8, 3\): want"),
        ({"conv": conv(5)}, r"\(5,\): want"),
        ({"conv": conv(5, 8, 3, dtype=torch.float16)}, "of dtype float16: want bfloat16"),
        ({"conv": [t.transpose(1, 2) for t in conv(5, 3, 8)]}, "want each slot contiguous"),
        ({"conv": conv(5, 8, 3)[:1]}, "want one a layer of each"),
        ({"more": conv(5, 8, 3)}, r"want \['conv', 'ssm'\]"),
    ],
)
def test_tensors_that_hold_no_such_states_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolError, match=says):
        PagedCache.states(SPEC, tensors(**change))


def test_states_of_another_kind_are_refused() -> None:
    spec = KVSpec.mla(layers=2, dim=4, dtype="float32", page_tokens=4)
    with pytest.raises(PoolError, match="want kind 'state'"):
        PagedCache.states(spec, tensors())


def test_B16_segments_are_views_of_their_own() -> None:
    pool = PagedCache.states(SPEC, tensors())
    assert [tuple(view.shape) for view in pool.parts[0]] == [
        (5, 1, 2, 12),  # channels 0..4 of conv: two groups of two channels, three bfloat16 each
        (5, 1, 2, 12),
        (5, 1, 2, 8),
    ]
