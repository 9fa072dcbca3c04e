"""Demo grid: the coarsest cut that suits two topologies, and who touches which cell of it.

It knows no pool, no process and no way to draw.
"""

from collections.abc import Sequence
from typing import NamedTuple

from unikv.fleet import Deployment, common_cut
from unikv.geometry import Box
from unikv.grid import Grid
from unikv.spec import KVSpec
from unikv.tools.demo_job import Done
from unikv.topology import Topology


class GridChoice(NamedTuple):
    """Grid settings of a namespace and the reason for them, in words."""

    layer_cuts: tuple[int, ...]
    heads_per_chunk: int
    reason: str


class Cell(NamedTuple):
    """One chunk of the grid with the ranks that wrote it and those that read it."""

    chunk: str  # as its key says: "L0-15_H0"
    layers: tuple[int, int]
    heads: tuple[int, int]
    wrote: tuple[str, ...]
    read: tuple[str, ...]


def choose_grid(
    spec: KVSpec,
    write: Topology,
    read: Topology,
    layers_per_chunk: int | None = None,
    heads_per_chunk: int | None = None,
) -> GridChoice:
    """Return the coarsest grid by which every rank of both sides owns whole chunks.

    As `common_cut` has it; a setting that is given stays as it is.

    Raises:
        TopologyError: a topology does not fit the model.
    """
    cut = common_cut(spec, [Deployment(write), Deployment(read)])
    cuts = cut.layer_cuts
    if layers_per_chunk is not None:
        cuts = (*range(0, spec.layers, layers_per_chunk), spec.layers)
    given = [
        name
        for name, value in (("layers", layers_per_chunk), ("heads", heads_per_chunk))
        if value is not None
    ]
    reason = f"the coarsest by which {write} and {read} both own whole chunks"
    if given:
        reason = f"{' and '.join(given)} a chunk as asked for"
    return GridChoice(cuts, heads_per_chunk or cut.heads_per_chunk, reason)


def is_aligned(grid: Grid, box: Box) -> bool:
    """Return whether a reader of ``box`` can leave out every byte that is not its own.

    Layers always can: any layer range of a chunk is a byte range. Heads share their slabs.
    """
    size = grid.heads_per_chunk
    return box.heads.start % size == 0 and box.heads.stop % size == 0


def fill_cells(grid: Grid, written: Sequence[Done], read: Sequence[Done]) -> list[Cell]:
    """Return every chunk of the grid with who wrote and who read it, in the grid's order."""
    wrote, reads = _touched(grid, written), _touched(grid, read)
    return [
        Cell(
            chunk.suffix,
            (chunk.layers.start, chunk.layers.stop),
            (chunk.heads.start, chunk.heads.stop),
            tuple(wrote[chunk.index]),
            tuple(reads[chunk.index]),
        )
        for chunk in grid.chunks
    ]


def _touched(grid: Grid, ranks: Sequence[Done]) -> list[list[str]]:
    names: list[list[str]] = [[] for _ in grid.chunks]
    for done in ranks:
        for index in grid.covering(done.job.box):
            names[index].append(done.job.name)
    return names
