"""Planner: from a box to the ranges and copies that move it. It knows no store and no pool."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unikv.errors import GridError
from unikv.geometry import Box, Interval, Phase, Piece
from unikv.grid import Chunk, Grid
from unikv.objects import ObjectFormat

_Column: TypeAlias = NDArray[np.int64]

_PLACE_ALIGN = 512  # what O_DIRECT asks of a buffer, and the header's own unit
_PAGE_ALIGN = 4096


class Columns(NamedTuple):
    """Transfers as columns of int64, one row each: a byte range of an object and its place."""

    key: _Column  # index into the keys
    start: _Column  # bytes in the object
    stop: _Column
    place: _Column  # bytes in staging


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The copies between objects, staging and a rank's pool for one page; all pages are alike.

    Staging holds, for each touched chunk, header and wanted slabs side by side.
    """

    chunks: tuple[Chunk, ...]  # touched by the box, in the grid's order
    header_bytes: int  # in front of each chunk's slabs, in staging as in its object
    first_slab: tuple[int, ...]  # of each chunk: the first slab that moves
    first_layer: tuple[int, ...]  # of each chunk: the layer of that slab, from the box's first
    slabs: tuple[int, ...]  # of each chunk: how many move
    place: tuple[int, ...]  # of each chunk: its header's byte in staging, a multiple of 512
    page_bytes: int  # staging of one page, a multiple of 4096
    spans: Columns  # of one page; `key` indexes `chunks`
    pieces: tuple[Piece, ...]  # between staging and pool
    needed: int  # payload bytes of the box in one page
    read: int  # payload bytes that move for it: needed, and heads that share its slabs
    key_tails: tuple[str, ...]  # of each chunk: its object's key behind the page's hash

    def keys(self, pages: Sequence[str]) -> list[str]:
        """Return the object keys of ``pages``, all chunks of a page together."""
        tails = self.key_tails
        return [page + tail for page in pages for tail in tails]

    def expand(self, pages: int, layers: Interval | None = None) -> Columns:
        """Return the spans of ``pages`` pages: keys as `keys` orders them, staging page by page.

        ``layers`` (of the box, from 0) narrows them to what is read of these alone; a header
        comes with the first layer of its chunk that the box holds.
        """
        page = np.arange(pages, dtype=np.int64)[:, None]
        spans = self.spans if layers is None else self._window(layers)
        return Columns(
            (page * len(self.chunks) + spans.key).ravel(),
            np.tile(spans.start, pages),
            np.tile(spans.stop, pages),
            (page * self.page_bytes + spans.place).ravel(),
        )

    def width(self, layers: Interval | None = None) -> int:
        """Return how many spans a page has."""
        return len(self.spans.key) if layers is None else len(self._window(layers).key)

    def touched(self, layers: Interval | None = None) -> list[tuple[int, Interval]]:
        """Return the chunks that ``layers`` of the box touch, and which of the slabs that move."""
        every = [(c, Interval(0, count)) for c, count in enumerate(self.slabs)]
        if layers is None:
            return every
        found = []
        for c, slabs in every:
            first = self.first_layer[c]
            start, stop = max(layers.start - first, 0), min(layers.stop - first, slabs.stop)
            if start < stop:
                found.append((c, Interval(start, stop)))
        return found

    def _window(self, layers: Interval) -> Columns:
        rows: list[tuple[int, int, int, int]] = []
        for c, (start, stop) in ((c, (some.start, some.stop)) for c, some in self.touched(layers)):
            size, header, place = self.chunks[c].slab_bytes, self.header_bytes, self.place[c]
            first = self.first_slab[c]
            at, end = header + (first + start) * size, header + (first + stop) * size
            if start == 0 and first == 0:
                at = 0
            elif start == 0:
                rows.append((c, 0, header, place))
            rows.append((c, at, end, place + (header + start * size if at else 0)))
        return _columns(rows)


def plan_read(fmt: ObjectFormat, box: Box) -> Plan:
    """Return how to read ``box`` of a page: from each chunk the header and the slabs it needs.

    Heads that share a slab with wanted ones are read too and left in staging: ``read - needed``.

    Raises:
        GridError: the box reaches outside the spec, or its token phase is no union of the grid's.
    """
    grid, header = fmt.grid, fmt.header_bytes
    chunks = tuple(grid.chunks[index] for index in grid.covering(box))
    wanted = [chunk.layers & box.layers for chunk in chunks]
    first = [
        layers.start - chunk.layers.start for chunk, layers in zip(chunks, wanted, strict=True)
    ]
    slabs = [layers.size for layers in wanted]
    places: list[int] = []
    end = 0
    for count in slabs:
        places.append(end)
        end = _round_up(end + header + count * grid.slab_bytes, _PLACE_ALIGN)
    return Plan(
        chunks=chunks,
        header_bytes=header,
        first_slab=tuple(first),
        first_layer=tuple(layers.start - box.layers.start for layers in wanted),
        slabs=tuple(slabs),
        place=tuple(places),
        page_bytes=_round_up(end, _PAGE_ALIGN),
        spans=_spans(first, slabs, places, header, grid.slab_bytes),
        pieces=tuple(_pieces(grid, box, chunks, [place + header for place in places])),
        needed=_needed(grid, box),
        read=sum(slabs) * grid.slab_bytes,
        key_tails=tuple(f"_{fmt.namespace.digest}_{chunk.suffix}" for chunk in chunks),
    )


def plan_write(fmt: ObjectFormat, box: Box) -> Plan:
    """Return how to write ``box`` of a page, which must be whole chunks of the grid.

    The spans cover header and payload; what stands behind the payload is the object format's.

    Raises:
        GridError: the box owns a part of a chunk. The message names grids that would fit.
    """
    grid = fmt.grid
    for index in grid.covering(box):
        chunk = grid.chunks[index]
        if chunk.layers & box.layers != chunk.layers or chunk.heads & box.heads != chunk.heads:
            raise GridError(
                f"a rank with layers {box.layers} and heads {box.heads} would own only a part of "
                f"chunk {chunk.suffix} (layers {chunk.layers}, heads {chunk.heads}) and cannot "
                f"write it. Grids that fit this rank: {_fitting(grid, box)}"
            )
    return plan_read(fmt, box)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _spans(
    first: Sequence[int], slabs: Sequence[int], places: Sequence[int], header: int, slab_bytes: int
) -> Columns:
    rows: list[tuple[int, int, int, int]] = []
    for key, (skipped, count, place) in enumerate(zip(first, slabs, places, strict=True)):
        start = header + skipped * slab_bytes
        stop = start + count * slab_bytes
        if skipped:
            rows += (key, 0, header, place), (key, start, stop, place + header)
        else:  # the slabs stand behind the header in the object as in staging
            rows.append((key, 0, stop, place))
    return _columns(rows)


def _columns(rows: Sequence[tuple[int, int, int, int]]) -> Columns:
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return Columns(*(np.ascontiguousarray(column) for column in table.T))


def _pieces(
    grid: Grid, box: Box, chunks: Iterable[Chunk], payloads: Iterable[int]
) -> Iterable[Piece]:
    """Yield what of each chunk is the pool's; ``payloads`` are where its slabs begin in staging."""
    widths = [part.width for part in grid.spec.parts]
    for chunk, payload in zip(chunks, payloads, strict=True):
        layers, heads = chunk.layers & box.layers, chunk.heads & box.heads
        phase = _pool_phase(grid, box.phase, chunk.phase or 0)
        pool_head, skipped = heads.start - box.heads.start, heads.start - chunk.heads.start
        for slab in range(layers.size):
            layer = layers.start - box.layers.start + slab
            base = payload + slab * grid.slab_bytes
            for part, (offset, _, row_bytes) in enumerate(grid.part_offsets):
                at = base + offset + skipped * widths[part]
                yield Piece(layer, part, pool_head, heads.size, phase, at, row_bytes)


def _pool_phase(grid: Grid, held: Phase, phase: int) -> Phase:
    """Return the rows of a pool, which holds only the tokens of ``held``, that a phase fills."""
    count = grid.phases // held.count
    if count == 1:
        return Phase()
    return Phase(phase // held.count, count, grid.interleave)


def _needed(grid: Grid, box: Box) -> int:
    row = sum(part.rows * part.width for part in grid.spec.parts)  # of all tokens and one head
    return box.layers.size * box.heads.size * row // box.phase.count


def _fitting(grid: Grid, box: Box) -> str:
    """Name grid settings by which ``box`` would be whole chunks, the coarsest first."""
    settings: list[str] = []
    layers, spec = box.layers, grid.spec
    if not {layers.start, layers.stop} <= set(grid.layer_cuts):
        largest = max(layers.start, layers.size)  # the last chunk may be shorter than the others
        sizes = [size for size in range(1, largest + 1) if _cuts_at(size, layers, spec.layers)]
        cuts = tuple(sorted({0, layers.start, layers.stop, spec.layers}))
        settings.append(f"layers_per_chunk={_choice(sizes)} or layer_cuts={cuts}")
    if box.heads.start % grid.heads_per_chunk or box.heads.stop % grid.heads_per_chunk:
        shared = gcd(spec.kv_heads, box.heads.start, box.heads.stop)
        sizes = [n for n in range(1, shared + 1) if shared % n == 0]
        settings.append(f"heads_per_chunk={_choice(sizes)}")
    return ", and ".join(settings)


def _cuts_at(size: int, layers: Interval, total: int) -> bool:
    return layers.start % size == 0 and (layers.stop % size == 0 or layers.stop == total)


def _choice(sizes: Sequence[int]) -> str:
    """Return at most four of ascending sizes, the largest first; 1 is always among them."""
    return " or ".join(map(str, [*sizes[:0:-1][:3], sizes[0]]))
