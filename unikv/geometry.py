"""Box: layers, heads and tokens of a page that somebody holds. It knows no model and no rank."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Interval:
    """A half-open range of whole numbers, ``start <= x < stop``; empty when both are equal."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"interval {self.start}..{self.stop}: want 0 <= start <= stop")

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return self.stop - self.start

    def __and__(self, other: "Interval") -> "Interval":
        """Return what both hold; an empty interval when they do not meet."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.stop, other.stop)))

    def __str__(self) -> str:
        return f"{self.start}..{self.stop}"


@dataclass(frozen=True, slots=True)
class Phase:
    """The tokens t of a page with ``t // interleave % count == index``; all of them by default."""

    index: int = 0
    count: int = 1
    interleave: int = 1

    def __post_init__(self) -> None:
        if not (self.interleave > 0 and 0 <= self.index < self.count):
            raise ValueError(
                f"phase {self.index} of {self.count}, interleave {self.interleave}: "
                "want 0 <= index < count and interleave > 0"
            )

    def tokens(self, page_tokens: int) -> list[int]:
        """Return the tokens of a page that belong to the phase, ascending."""
        return [t for t in range(page_tokens) if t // self.interleave % self.count == self.index]

    def size(self, page_tokens: int) -> int:
        """Return how many tokens of a page belong to the phase."""
        whole, rest = divmod(page_tokens, self.interleave * self.count)
        more = min(max(rest - self.index * self.interleave, 0), self.interleave)
        return whole * self.interleave + more


@dataclass(frozen=True, slots=True)
class Box:
    """What one rank holds of every page: layer ordinals, global head ids and a token phase.

    ``heads`` counts KV heads (MHA, GQA) or state groups; kinds without heads have ``0..1``.
    """

    layers: Interval
    heads: Interval
    phase: Phase = Phase()

    @property
    def empty(self) -> bool:
        """Whether the rank holds nothing, as a pipeline stage without layers of the component."""
        return not (self.layers.size and self.heads.size)


class Piece(NamedTuple):
    """One (layer, part) of one chunk: where its rows lie in a pool and in a page's staging.

    Row r of the piece is row ``phase.tokens(rows)[r]`` of the page in the pool; in staging it
    begins at ``offset + r * row_bytes`` and holds ``heads`` adjacent heads.
    """

    layer: int  # layer of the pool, from 0 at the rank's first layer
    part: int  # index into the spec's parts: K and V of MHA, one latent of MLA
    head: int  # first head in the pool, from 0 at the rank's first head
    heads: int
    phase: Phase  # which of the pool's rows of a page
    offset: int  # bytes, from the start of the page's staging
    row_bytes: int  # bytes between rows in staging: all heads of the chunk
