"""Plan draw: the layer x head grid of a page, and which ranks hold what. It knows no figures.

Stages, tensor ranks and decode context ranks cut a page along axes of their own, so each axis names
its owners once: stages beside the layers, tensor ranks above the heads, others below.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from unikv.tools.plan_figures import PlanFigures
from unikv.tools.wording import HEAD_NOUNS

_MARKS = ("■", "#")  # of one object; the second where a terminal has ASCII only
_GROUPS = (12, 8, 5, 3)  # columns of head groups, as many as the console has room for
_SPARE = 16  # columns that a table may want beyond its narrowest
_CUTS = 24  # rows of layer cuts
_PHASES = 4  # marks side by side


def letters(count: int) -> list[str]:
    """Return a name for each of at most 26 deployments: A, B, C."""
    return [chr(ord("A") + index) for index in range(count)]


def spell(ranks: Iterable[int]) -> str:
    """Return ascending ranks in short: "0-3", "0,2"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ",".join("-".join(map(str, run)) for run in runs) or "-"


def draw_grid(console: Console, figures: PlanFigures) -> None:
    """Print layers down, head groups across and a mark for each token phase of a cell."""
    mark = _MARKS[not console.encoding.startswith("utf")]
    unbounded = console.options.update(width=10_000)
    for limit in _GROUPS:
        table = _table(figures, mark, limit)
        least = console.measure(table, options=unbounded).minimum
        if least + _SPARE <= console.width:
            break
    console.print(table)
    names = letters(len(figures.deployments))
    console.print(Padding(f"{mark} an object{_phases_text(figures, names)}", (0, 0, 0, 2)))


def _table(figures: PlanFigures, mark: str, limit: int) -> Table:
    grid, names = figures.grid, letters(len(figures.deployments))
    groups = _shown(len(figures.deployments[0].owners.tp), limit)
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for _ in groups:
        table.add_column(no_wrap=True)
    if noun := HEAD_NOUNS.get(str(figures.spec["kind"])):
        heads = [_heads(grid.heads_per_chunk, group) for group in groups]
        table.add_row("", Text(f"{noun}s", "dim"), *heads)
    for name, one in zip(names, figures.deployments, strict=True):
        owners = [_dots(group, one.owners.tp) for group in groups]
        table.add_row("", Text(f"{name} tp", "dim"), *owners)
    table.add_row(Text("  layers", "dim"), Text("pp", "dim"))
    cell = mark * grid.phases if grid.phases <= _PHASES else f"{mark}x{grid.phases}"
    layers = [f"  {start}-{stop}" for start, stop in pairwise(grid.layer_cuts)]
    for cut in _shown(len(layers), _CUTS):
        if cut is None:
            table.add_row("  ...")
            continue
        stages = [
            f"{name} {spell(one.owners.pp[cut])}"
            for name, one in zip(names, figures.deployments, strict=True)
        ]
        cells = ["..." if group is None else cell for group in groups]
        table.add_row(layers[cut], "  ".join(stages), *cells)
    return table


def _shown(count: int, limit: int) -> list[int | None]:
    """Return which of ``count`` are drawn, with None where some in the middle are not."""
    if count <= limit:
        return [*range(count)]
    return [*range(limit - 2), None, count - 1]


def _heads(size: int, group: int | None) -> str:
    if group is None:
        return "..."
    first = group * size
    return str(first) if size == 1 else f"{first}-{first + size - 1}"


def _dots(index: int | None, owners: Sequence[Sequence[int]]) -> str:
    return "..." if index is None else spell(owners[index])


def _phases_text(figures: PlanFigures, names: Sequence[str]) -> str:
    """Say which decode context ranks hold the token phases of a cell, left to right."""
    if figures.grid.phases == 1:
        return ""
    held = []
    for name, one in zip(names, figures.deployments, strict=True):
        shown = _shown(figures.grid.phases, 2 * _PHASES)
        ranks = " ".join(_dots(phase, one.owners.dcp) for phase in shown)
        held.append(f"{name} dcp {ranks}")
    return f" of one token phase, T0 to T{figures.grid.phases - 1}, held by {'; '.join(held)}"
