"""Universe: the pages of one folder, and what each of their values must be. It knows no store.

Sequences share heads, as prompts do: a family is one head and many tails. Every value of every
page differs from every other and says to which page, layer, token, head and dim it belongs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unikv import KVSpec, Namespace, page_hashes

LAYERS = 4
HEADS = 2
DIM = 64
TOKENS = 16
PARTS = 2  # K and V
CHUNKS = 4  # of a page: two of layers by two of heads
SPEC = KVSpec.mha(
    layers=LAYERS, kv_heads=HEADS, head_dim=DIM, v_head_dim=DIM, dtype="int32", page_tokens=TOKENS
)
NAMESPACE = Namespace(
    spec=SPEC,
    weights="unversioned",
    model="soak",
    rope="none",
    layer_cuts=(0, 2, 4),
    heads_per_chunk=1,
)
VALUES = PARTS * LAYERS * TOKENS * HEADS * DIM  # of a page; page n has those from n * VALUES + 1 on
ROOM = CHUNKS * 5 * 4096  # of a page on disk: a chunk's payload is 4 blocks, its header takes one
MOST_PAGES = 24  # of a sequence
POISON = -7
GARBAGE = -12_345

_PAGE = torch.arange(1, VALUES + 1, dtype=torch.int32).view(PARTS, LAYERS, TOKENS, HEADS, DIM)


class Path(NamedTuple):
    """One sequence: its pages by hash, and by number."""

    pages: list[str]
    ids: list[int]

    def cut(self, start: int, stop: int) -> "Path":
        """Return some pages of it."""
        return Path(self.pages[start:stop], self.ids[start:stop])


@dataclass(frozen=True)
class Universe:
    """All sequences of a folder.

    Args:
        first: number of its first page; pages of different folders differ.
        families: heads.
        tails: sequences that share a head.
        head: pages of a head.
        tail: pages of a tail.
        at_first: families that are used from the start.
        every_s: seconds until one more is; 0 where all are from the start.
    """

    first: int
    families: int
    tails: int
    head: int
    tail: int
    at_first: int
    every_s: float = 0.0

    def come(self, seconds: float) -> int:
        """Return how many sequences are used after so many seconds."""
        more = int(seconds / self.every_s) if self.every_s else 0
        return min(self.at_first + more, self.families) * self.tails

    def paths(self) -> list[Path]:
        """Return the sequences, those of a family side by side."""
        numbers: dict[str, int] = {}
        found = []
        for family in range(self.families):
            head = [1_000_000 + family * 1000 + n for n in range(self.head * TOKENS)]
            for branch in range(self.tails):
                tail = [2_000_000 + branch * 1000 + n for n in range(self.tail * TOKENS)]
                pages = page_hashes(head + tail, TOKENS)
                ids = [numbers.setdefault(page, self.first + len(numbers)) for page in pages]
                found.append(Path(pages, ids))
        return found

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return self.families * (self.head + self.tails * self.tail)


A = Universe(first=0, families=64, tails=6, head=6, tail=10, at_first=4, every_s=10)
"""Of the folder without a bound, which fills and stays: its families come one after the other."""

B = Universe(first=10_000, families=12, tails=16, head=8, tail=16, at_first=12)
"""Of the folder with a bound, which holds a fifth of them."""


def values(ids: list[int], heads: range) -> Tensor:
    """Return what pools hold of some pages: int32 (parts, layers, tokens, heads, dim)."""
    numbers = torch.tensor(ids, dtype=torch.int32).view(-1, 1, 1, 1, 1, 1) * VALUES
    pages = _PAGE[..., heads.start : heads.stop, :] + numbers
    return pages.permute(1, 2, 0, 3, 4, 5).flatten(2, 3)
