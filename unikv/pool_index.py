"""Pool index: slots or block tables, checked, as block ids of pages. It sees no KV."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from unikv.errors import PoolError

Slots: TypeAlias = Tensor | Sequence[Sequence[int]]


def read_index(
    slots: Slots, page_rows: int, block_tokens: int, blocks: int | None, *, unique: bool
) -> Tensor:
    """Return block ids, int64 (pages, page_rows / block_tokens); see `PagedCache.index`.

    ``blocks`` is how many there are, None for a pool of no layers, where any id will do.
    """
    if page_rows < 1 or page_rows % block_tokens:
        raise PoolError(f"pages of {page_rows} rows: want a multiple of the block's {block_tokens}")
    table = as_table(slots)
    page_blocks = page_rows // block_tokens
    if not table.numel():
        return table.new_empty((0, page_blocks))
    if blocks is None and page_rows % table.shape[1] == 0:
        page_blocks = table.shape[1]  # no tensor tells how long blocks are: they may be the others'
    if table.shape[1] == page_blocks:
        _check_range(table, blocks, "slot" if block_tokens == 1 else "block")
    elif table.shape[1] == page_rows:
        _check_range(table, None if blocks is None else blocks * block_tokens, "slot")
        table = _slots_to_blocks(table, block_tokens)
    else:
        wanted = dict.fromkeys((f"(pages, {page_rows})", f"(pages, {page_blocks})"))
        raise PoolError(f"slots of shape {tuple(table.shape)}: want {' or '.join(wanted)}")
    if unique:
        _check_unique(table)
    return table


def as_table(slots: Slots) -> Tensor:
    """Return int64 of two axes, a copy: what the engine does to its table later changes nothing."""
    if isinstance(slots, Tensor):
        if slots.device.type != "cpu":
            raise PoolError(f"slots on device {slots.device}: want them on cpu, where the pool is")
        table = slots
    else:
        try:
            table = torch.tensor(slots, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise PoolError(
                f"slots that are no table of whole numbers: want one row a page; {error}"
            ) from error
    if not table.numel():
        return torch.empty((0, 0), dtype=torch.int64, device="cpu")
    if table.dtype not in (torch.int64, torch.int32) or table.dim() != 2:
        raise PoolError(
            f"slots of {table.dtype} and shape {tuple(table.shape)}: want int64 or int32, "
            "one row a page of its slots or its blocks"
        )
    return table.detach().to(torch.int64, copy=True, memory_format=torch.contiguous_format)


def _check_range(table: Tensor, count: int | None, what: str) -> None:
    numbers = table.numpy()  # whose small operations cost a tenth of torch's
    if numbers.min() < 0 or (count is not None and numbers.max() >= count):
        wrong = table < 0 if count is None else (table < 0) | (table >= count)
        page, entry = wrong.nonzero()[0].tolist()
        limit = "0 or more" if count is None else f"0 to {count - 1}"
        raise PoolError(
            f"page {page}, entry {entry}: {what} {int(table[page, entry])}: want {limit}"
        )


def _slots_to_blocks(table: Tensor, block_tokens: int) -> Tensor:
    """Return the blocks of slots, which must fill whole blocks in order."""
    slots = table.numpy()
    blocks = slots[:, ::block_tokens] // block_tokens
    wanted = (blocks[:, :, None] * block_tokens + np.arange(block_tokens)).reshape(slots.shape)
    if not np.array_equal(slots, wanted):
        page, entry = np.argwhere(slots != wanted)[0].tolist()
        raise PoolError(
            f"page {page}, entry {entry}: slot {int(slots[page, entry])}: want "
            f"{int(wanted[page, entry])}, since pages fill whole blocks of {block_tokens}"
        )
    return torch.from_numpy(blocks)


def _check_unique(table: Tensor) -> None:
    numbers = np.sort(table.numpy(), axis=None)
    if (numbers[1:] == numbers[:-1]).any():
        ids, order = table.flatten().sort(stable=True)
        again = (ids[1:] == ids[:-1]).nonzero().flatten()
        first, second = (int(order[again[0] + i]) // table.shape[1] for i in (0, 1))
        if first == second:
            raise PoolError(
                f"page {first} names {int(ids[again[0]])} twice: want a place for each row"
            )
        raise PoolError(
            f"pages {first} and {second} both name {int(ids[again[0]])}: want a place each, since "
            "one cannot hold both"
        )
