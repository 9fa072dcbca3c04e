"""Pool: an engine's KV pool in lanes, each of one call at a time. It knows no client.

What no call uses is poison; a lane is looked at when it is taken, so that whatever was written to
it since it was given back is seen.
"""

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.soak.universe import DIM, LAYERS, MOST_PAGES, PARTS, POISON, TOKENS, values
from unikv import PagedCache

LANES = 9  # three calls at once, of which each takes three at most
_SLOTS = MOST_PAGES * TOKENS + 5  # of a lane


class WrongValueError(Exception):
    """The pool holds what it must not."""


@dataclass
class Pool:
    """The pool of one rank; ``seed`` says where in its lane each token lies."""

    heads: range
    seed: int
    free: deque["Lane"] = field(default_factory=deque)

    def __post_init__(self) -> None:
        shape = (PARTS, LAYERS, LANES * _SLOTS, len(self.heads), DIM)
        self.data = torch.full(shape, POISON, dtype=torch.int32)
        self.cache = PagedCache.slots(list(self.data[0]), list(self.data[1]))
        self._draw = torch.Generator().manual_seed(self.seed)
        self.free.extend(Lane(self, n * _SLOTS) for n in range(LANES))

    def take(self, ids: list[int]) -> "Lane":
        """Return the lane that was free for longest, laid out for some pages."""
        lane = self.free.popleft()
        lane.check_untouched()
        lane.ids = ids
        order = torch.randperm(_SLOTS, generator=self._draw)[: len(ids) * TOKENS]
        lane.slots = (lane.first + order).view(-1, TOKENS)
        return lane

    def check_idle(self) -> None:
        """Raise `WrongValueError` if anything was written to a lane that is free."""
        for lane in self.free:
            lane.check_untouched()


@dataclass(eq=False)
class Lane:
    """Slots of one call: ``slots`` are those of its pages, the others must never change."""

    pool: Pool
    first: int
    ids: list[int] = field(default_factory=list)
    slots: Tensor = field(default_factory=lambda: torch.empty(0, TOKENS, dtype=torch.int64))

    @property
    def data(self) -> Tensor:
        """All of its slots."""
        return self.pool.data[:, :, self.first : self.first + _SLOTS]

    def fill(self) -> None:
        """Put the pages' values there."""
        self.pool.data[:, :, self.slots.flatten()] = values(self.ids, self.pool.heads)

    def spoil(self, value: int) -> None:
        """Overwrite all of it."""
        self.data.fill_(value)

    def give_back(self) -> None:
        """Let another call have it, later."""
        self.spoil(POISON)
        self.pool.free.append(self)

    def check_untouched(self) -> None:
        """Raise unless all of it is poison."""
        if not bool((self.data == POISON).all()):
            raise WrongValueError(f"slots of a call that is over were written to: {self._some()}")

    def check(self, pages: int) -> None:
        """Raise unless the first pages are there, and poison everywhere else."""
        want = torch.full_like(self.data, POISON)
        at = self.slots.flatten()[: pages * TOKENS] - self.first
        want[:, :, at] = values(self.ids[:pages], self.pool.heads)
        if not torch.equal(self.data, want):
            where = (self.data != want).nonzero()[0].tolist()
            found, wanted = int(self.data[tuple(where)]), int(want[tuple(where)])
            raise WrongValueError(
                f"a load of {pages} of {len(self.ids)} pages (from {self.ids[:1]}) left {found} "
                f"where {wanted} should be, at {self._name(where)}"
            )

    def check_layer(self, layer: int) -> None:
        """Raise unless one layer holds all pages."""
        found = self.pool.data[:, layer, self.slots.flatten()]
        if not torch.equal(found, values(self.ids, self.pool.heads)[:, layer]):
            raise WrongValueError(f"layer {layer} was said to be there, and is not: {self._some()}")

    def check_harmless(self, *, whole: bool) -> None:
        """Raise if there is anything but poison and what belongs there.

        With ``whole`` also if a page is there in part, or one behind a page that is not.
        """
        found = self.pool.data[:, :, self.slots.flatten()]
        right = found == values(self.ids, self.pool.heads)
        kept = self.data.clone()
        kept[:, :, self.slots.flatten() - self.first] = POISON
        if not bool((right | (found == POISON)).all() and (kept == POISON).all()):
            raise WrongValueError(f"a call that counts for nothing left {self._some()}")
        if whole:
            there = right.reshape(PARTS, LAYERS, len(self.ids), -1).permute(2, 0, 1, 3).flatten(1)
            pages = int(there.all(1).long().cumprod(0).sum())
            if bool(there[pages:].any()):
                raise WrongValueError(f"a cancelled load left a part of page {pages}")

    def _some(self) -> str:
        where = (self.data != POISON).nonzero()[0].tolist()
        return f"{int(self.data[tuple(where)])} at {self._name(where)} of pages {self.ids[:1]}..."

    def _name(self, where: list[int]) -> str:
        part, layer, slot, head, dim = where
        return f"part {part}, layer {layer}, slot {slot}, head {head}, dim {dim}"
