"""Pool of states: a rank's recurrent state tensors as byte views by group. It knows no page.

A rank that holds some groups has, of each segment of a part, the share of its groups, segment
after segment: with segments 8, 8 and 16 in 4 groups, a rank of one group has 2 + 2 + 4 channels.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unikv.dtypes import DTYPES
from unikv.errors import PoolError
from unikv.pool_layouts import PoolView
from unikv.state import StatePart


def view_states(
    parts: Sequence[StatePart], groups: int, tensors: Mapping[str, Sequence[Tensor]]
) -> list[list[PoolView]]:
    """View one tensor (slots, axis 0 of this rank's groups, ...) a layer for each part.

    Returns:
        For each layer a view uint8 (slots, 1, this rank's groups, bytes of a group) for each
        segment of each part, in the order of the spec's parts.

    Raises:
        PoolError: tensors for other parts, counts that differ, or one of another shape or dtype.
    """
    names = [part.name for part in parts]
    if sorted(tensors) != sorted(names):
        raise PoolError(f"tensors of state parts {sorted(tensors)}: want {sorted(names)}")
    counts = {name: len(tensors[name]) for name in names}
    if len(set(counts.values())) != 1:
        raise PoolError(f"tensors a part {counts}: want one a layer of each")
    return [
        [
            view
            for part in parts
            for view in _view_part(part, groups, tensors[part.name][layer], layer)
        ]
        for layer in range(counts[names[0]])
    ]


def _view_part(part: StatePart, groups: int, tensor: Tensor, layer: int) -> list[PoolView]:
    name = f"{part.name}[{layer}]"
    dtype = str(tensor.dtype).removeprefix("torch.")
    whole = tensor.shape[1] * groups if tensor.dim() > 1 else 0
    held, rest = divmod(whole, part.shape[0])
    other = tensor.shape[2:] != part.shape[1:]
    if rest or other or not 0 < held <= groups or not len(tensor):
        want = ", ".join(map(str, (part.shape[0] // groups, *part.shape[1:])))
        raise PoolError(
            f"{name} of shape {tuple(tensor.shape)}: want (slots, {want}), axis 1 times the groups "
            "that this rank holds"
        )
    if dtype != part.dtype:
        raise PoolError(f"{name} of dtype {dtype}: want {part.dtype}, as the spec")
    if not tensor[0].is_contiguous():
        raise PoolError(f"{name} with strides {tensor.stride()}: want each slot contiguous")
    row = tensor[0].numel()
    with torch.inference_mode(mode=False):
        flat = tensor.detach().as_strided((len(tensor), row), (tensor.stride(0), 1))
        data = flat.view(torch.uint8)
    step = row // tensor.shape[1] * DTYPES[dtype]  # bytes of one index of axis 0
    views, start = [], 0
    for segment in part.segments or part.shape[:1]:
        width = segment // groups * step
        stop = start + held * width
        views.append(PoolView(name, "uint8", data[:, None, start:stop].view(-1, 1, held, width)))
        start = stop
    return views
