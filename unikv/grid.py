"""Grid: the fixed cut of a page into chunks. It knows nothing of who writes or reads them."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from unikv.errors import GridError
from unikv.geometry import Box, Interval, Phase
from unikv.namespace import Namespace
from unikv.spec import KVSpec


@dataclass(frozen=True, slots=True)
class Chunk:
    """One cell of the grid, stored as one object: layers x heads of a group x tokens of a phase."""

    index: int  # position in `Grid.chunks`
    layers: Interval  # ordinals inside the component
    heads: Interval  # global KV heads or state groups; 0..1 for kinds without heads
    group: int | None  # None when the key carries no _H
    phase: int | None  # None when the key carries no _T
    slab_bytes: int  # bytes of one layer, all parts
    suffix: str  # the object's key behind "{page}_{digest}_": "L0-15_H0"

    @property
    def slabs(self) -> int:
        """How many slabs it holds: one a layer."""
        return self.layers.size

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload before any codec."""
        return self.layers.size * self.slab_bytes


class SlabPart(NamedTuple):
    """One part (K, V, a latent, a state tensor) inside every slab of the grid."""

    offset: int  # bytes from the start of the slab
    rows: int  # rows of the part in one chunk
    row_bytes: int  # bytes between rows: all heads of the chunk


@dataclass(frozen=True, slots=True)
class Grid:
    """The chunks of every page of a namespace, ordered by head group, layer cut, token phase."""

    spec: KVSpec
    layer_cuts: tuple[int, ...]  # (0, 15, 30): chunk c holds layers cuts[c]..cuts[c + 1]
    heads_per_chunk: int
    phases: int = 1
    interleave: int = 1
    part_offsets: tuple[SlabPart, ...] = field(init=False, repr=False, compare=False)
    slab_bytes: int = field(init=False, repr=False, compare=False)
    chunks: tuple[Chunk, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the class is frozen for everybody else
        parts: list[SlabPart] = []
        offset = 0
        for part in self.spec.parts:
            rows = part.rows // self.phases
            row_bytes = self.heads_per_chunk * part.width
            parts.append(SlabPart(offset, rows, row_bytes))
            offset += rows * row_bytes
        set_field(self, "part_offsets", tuple(parts))
        set_field(self, "slab_bytes", offset)
        count = self.groups * self.cuts * self.phases  # the namespace bounds it
        set_field(self, "chunks", tuple(self._chunk(index) for index in range(count)))

    @classmethod
    def of(cls, namespace: Namespace) -> "Grid":
        """Return the grid of a namespace, whose settings are checked and normalised already."""
        return cls(
            namespace.spec,
            namespace.layer_cuts,
            namespace.heads_per_chunk,
            namespace.phases,
            namespace.interleave,
        )

    @property
    def cuts(self) -> int:
        """How many layer cuts a head group has."""
        return len(self.layer_cuts) - 1

    @property
    def groups(self) -> int:
        """How many head groups a page has."""
        return self.spec.kv_heads // self.heads_per_chunk

    def covering(self, box: Box) -> list[int]:
        """Return the indices of the chunks that hold a byte of ``box``, ascending.

        Raises:
            GridError: the box reaches outside the spec, or its token phase is no union of ours.
        """
        phases = self.covering_phases(box.phase)
        spec = self.spec
        if box.layers.stop > spec.layers or box.heads.stop > spec.kv_heads:
            raise GridError(
                f"box of layers {box.layers} and heads {box.heads}: "
                f"want layers within 0..{spec.layers} and heads within 0..{spec.kv_heads}"
            )
        if box.empty:
            return []
        first_group = box.heads.start // self.heads_per_chunk
        groups = range(first_group, -(-box.heads.stop // self.heads_per_chunk))
        first_cut = bisect_right(self.layer_cuts, box.layers.start) - 1
        cuts = range(first_cut, bisect_left(self.layer_cuts, box.layers.stop))
        return [
            (group * self.cuts + cut) * self.phases + phase
            for group in groups
            for cut in cuts
            for phase in phases
        ]

    def covering_phases(self, wanted: Phase) -> range:
        """Return the grid's phases whose tokens make up the box phase ``wanted``.

        Raises:
            GridError: no set of the grid's phases holds exactly those tokens.
        """
        if wanted.count == 1:
            return range(self.phases)
        if not self.spec.tokenwise:
            raise GridError(
                f"a rank with token phase {wanted.index} of {wanted.count}: rows of kind "
                f"{self.spec.kind!r} do not follow tokens, want phase 0 of 1"
            )
        if self.phases % wanted.count or self.interleave != wanted.interleave:
            raise GridError(
                f"a rank with token phase {wanted.index} of {wanted.count}, interleave "
                f"{wanted.interleave}, on a grid with phases={self.phases}, "
                f"interleave={self.interleave}: want a namespace with phases={wanted.count} "
                f"(or a multiple), interleave={wanted.interleave}"
            )
        return range(wanted.index, self.phases, wanted.count)

    def _chunk(self, index: int) -> Chunk:
        rest, phase = divmod(index, self.phases)
        group, cut = divmod(rest, self.cuts)
        layers = Interval(self.layer_cuts[cut], self.layer_cuts[cut + 1])
        heads = Interval(group * self.heads_per_chunk, (group + 1) * self.heads_per_chunk)
        suffix = f"L{layers.start}-{layers.stop}"
        if self.spec.has_heads:
            suffix += f"_H{group}"
        if self.phases > 1:
            suffix += f"_T{phase}"
        return Chunk(
            index=index,
            layers=layers,
            heads=heads,
            group=group if self.spec.has_heads else None,
            phase=phase if self.phases > 1 else None,
            slab_bytes=self.slab_bytes,
            suffix=suffix,
        )
