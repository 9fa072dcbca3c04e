"""Plan render: prints a plan, or why there is none, for people or as JSON. It works out nothing."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unikv.canonical import Json
from unikv.tools.plan_choice import NoGrid
from unikv.tools.plan_draw import draw_grid, letters, spell
from unikv.tools.plan_figures import (
    DeploymentFigures,
    GridFigures,
    ObjectFigures,
    PlanFigures,
    RankFigures,
)
from unikv.tools.screen import open_console
from unikv.tools.wording import HEAD_NOUNS, cache_text, count_text, printable, size_text, some

_ROWS = 12  # kinds of ranks of one deployment
_AXES = ("pp", "tp", "cp", "dcp")


def print_json(found: PlanFigures | NoGrid) -> None:
    """Print a plan to standard output as one JSON object, in ASCII."""
    json.dump(found.as_json(), sys.stdout, indent=2, allow_nan=False)
    print()


def print_plan(found: PlanFigures | NoGrid, *, console: Console | None = None) -> None:
    """Print a plan, to standard output unless a console is given."""
    if console is None:
        console = open_console()
    if isinstance(found, NoGrid):
        _print_no_grid(console, found)
    else:
        _print_figures(console, found)


def _print_no_grid(console: Console, found: NoGrid) -> None:
    _line(console, f"{found.model}: this fleet has no common grid", "bold red")
    for one in found.reasons:
        _line(console, f"  {f'{one.topology}: ' if one.topology else ''}{one.reason}", "red")
    near = found.nearest
    if near is None:
        _line(console, "nothing near it has one")
        return
    _line(console)
    _line(console, "the nearest that has one:", "bold")
    for change in near.changes:
        _line(console, f"  {change}")
    _line(console, f"  {_grid_text(near.grid, found.spec)}")
    words = [f"--deploy {topology}" for topology in near.deploy]
    words += [f"--read-only {topology}" for topology in near.read_only]
    _line(console, f"  unikv plan ... {' '.join(words)} --page-tokens {near.page_tokens}")


def _print_figures(console: Console, figures: PlanFigures) -> None:
    names = letters(len(figures.deployments))
    title = figures.model
    if figures.component != "target":
        title += f", component {figures.component}"
    _line(console, title, "bold")
    _line(console, f"  {cache_text(figures.spec)}")
    ids = cast("list[int]", figures.spec["layer_ids"])
    if ids != list(range(len(ids))):
        _line(console, f"  layers 0-{len(ids)} of the component are the model's {some(ids)}")
    tokens = figures.kv_bytes_per_token
    page = size_text(figures.payload_bytes_per_page)
    _line(console, f"  {_number(tokens)} bytes of KV a token, {page} a page")
    _heading(console, "fleet")
    _print_rows(console, _fleet_rows(names, figures.deployments))
    _heading(console, "grid: the coarsest by which every rank that writes owns whole chunks")
    _line(console, f"  {_grid_text(figures.grid, figures.spec)}")
    _line(console)
    draw_grid(console, figures)
    _heading(console, "objects")
    console.print(_objects_table(figures.objects))
    most = "" if figures.codec == "none" else "at most "
    stored = f"{most}{figures.stored_bytes_per_page:,} bytes stored"
    _line(console, f"  a page: {_objects(figures.grid.chunks_per_page)}, {stored}")
    if most:
        words = (
            f"codec {figures.codec}: all bytes told here but payloads are upper bounds, costs too; "
        )
        _print_rows(console, [(f"{words}a read takes two rounds, headers and then slabs",)])
    _heading(console, "a page, all ranks together")
    console.print(_deployments_table(names, figures.deployments))
    _heading(console, "a page, on each rank that owns it")
    console.print(_ranks_table(names, figures.deployments))
    _print_prompt(console, names, figures)
    if figures.warnings:
        _heading(console, "warnings")
        _print_rows(console, (("!", warning.text) for warning in figures.warnings), "yellow")
    _heading(console, "namespace, to paste")
    _line(console)
    for line in figures.snippet.splitlines():
        _line(console, line)


def _fleet_rows(
    names: Sequence[str], deployments: Iterable[DeploymentFigures]
) -> Iterator[tuple[str, ...]]:
    for name, one in zip(names, deployments, strict=True):
        facts = [count_text(one.ranks, "rank")]
        if one.own_grid:
            facts.append(f"alone {_objects(one.own_grid.chunks_per_page)} a page")
        if one.replicas > 1:
            facts.append(f"{one.replicas} ranks hold the same bytes")
        if one.page_ranks > 1:
            facts.append(f"each page on 1 rank of {one.page_ranks}")
        yield name, one.topology, "writes" if one.writes else "only reads", "; ".join(facts)


def _objects_table(objects: Iterable[ObjectFigures]) -> Table:
    table = _table("  objects", "layers", "header", "payload", "description", "bytes")
    for one in objects:
        parts = one.header_bytes, one.payload_bytes, one.description_bytes, one.object_bytes
        table.add_row(f"  {one.objects:,}", str(one.layers), *(f"{size:,}" for size in parts))
    return table


def _deployments_table(names: Sequence[str], deployments: Iterable[DeploymentFigures]) -> Table:
    table = _table("  ", "puts", "gets", "needed", "read", "amplification")
    for name, one in zip(names, deployments, strict=True):
        puts = f"{one.puts:,}" if one.writes else "-"
        table.add_row(f"  {name}", puts, f"{one.gets:,}", *_read(one.needed_bytes, one.read_bytes))
    return table


def _ranks_table(names: Sequence[str], deployments: Iterable[DeploymentFigures]) -> Table:
    table = _table("  ", "objects", "gets", "needed", "read", "amplification")
    for name, one in zip(names, deployments, strict=True):
        rows = _alike(one.by_rank)
        for ranks in rows[:_ROWS]:
            rank = ranks[0]
            table.add_row(
                f"  {name} {_ranks_text(one, ranks)}",
                f"{rank.objects:,}",
                f"{rank.gets:,}",
                *_read(rank.needed_bytes, rank.read_bytes),
            )
        if len(rows) > _ROWS:
            table.add_row(f"  {name} and {len(rows) - _ROWS:,} more kinds of ranks (--json)")
    return table


def _read(needed: int, read: int) -> tuple[str, str, str]:
    return size_text(needed), size_text(read), f"{read / needed:.2f}" if needed else "-"


def _alike(ranks: Iterable[RankFigures]) -> list[list[RankFigures]]:
    """Return ranks by what they do, those together that do equally much."""
    rows: dict[tuple[int, ...], list[RankFigures]] = {}
    for one in ranks:
        costs = one.objects, one.gets, one.needed_bytes, one.read_bytes, one.fetched_bytes
        rows.setdefault(costs, []).append(one)
    return list(rows.values())


def _ranks_text(deployment: DeploymentFigures, ranks: Sequence[RankFigures]) -> str:
    """Return the ranks by their axes where they are all combinations, else their number."""
    if len(ranks) == deployment.ranks:
        return f"each of {count_text(len(ranks), 'rank')}" if len(ranks) > 1 else "its rank"
    axes = {axis: sorted({getattr(rank, axis) for rank in ranks}) for axis in _AXES}
    combinations = 1
    for held in axes.values():
        combinations *= len(held)
    if combinations != len(ranks):
        return count_text(len(ranks), "rank")
    sizes = {axis: {getattr(rank, axis) for rank in deployment.by_rank} for axis in _AXES}
    return ", ".join(f"{axis} {spell(held)}" for axis, held in axes.items() if len(sizes[axis]) > 1)


def _print_prompt(console: Console, names: Sequence[str], figures: PlanFigures) -> None:
    prompt, prices = figures.prompt, figures.prices
    _heading(
        console,
        f"a prompt of {count_text(prompt.tokens, 'token')}: {count_text(prompt.pages, 'page')}, "
        f"{_objects(prompt.objects)}, {size_text(prompt.stored_bytes)}",
    )
    table = _table("  ", "requests", "bytes", "costs")
    table.add_row("  saved once", *_asked(prompt.puts, prompt.stored_bytes, prompt.put_cost))
    table.add_row("  kept for a month", "", "", f"{prompt.storage_cost_per_month:,.4f}")
    for name, one in zip(names, prompt.loads, strict=True):
        row = _asked(one.gets, one.fetched_bytes, one.get_cost)
        table.add_row(f"  loaded by {name}", *row)
    console.print(table)
    words = (
        f"at {prices.put} for 1,000 puts, {prices.get} for 1,000 gets, {prices.storage} for 10^9 "
        "bytes and a month: examples unless given (--put-price, --get-price, --storage-price)"
    )
    _print_rows(console, [(words,)], "dim")


def _asked(requests: int, size: int, cost: float) -> tuple[str, str, str]:
    return f"{requests:,}", size_text(size), f"{cost:,.4f}"


def _grid_text(grid: GridFigures, spec: Mapping[str, Json]) -> str:
    cuts = some(f"{start}-{stop}" for start, stop in pairwise(grid.layer_cuts))
    words = [f"layers {cuts}"]
    if noun := HEAD_NOUNS.get(str(spec["kind"])):
        words.append(f"{count_text(grid.heads_per_chunk, noun)} a chunk")
    if grid.phases > 1:
        words.append(f"{grid.phases} token phases, interleave {grid.interleave}")
    return f"{'; '.join(words)}: {_objects(grid.chunks_per_page)} a page"


def _objects(count: int) -> str:
    return count_text(count, "object")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.1f}"


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=index > 0)
    return table


def _print_rows(console: Console, rows: Iterable[tuple[str, ...]], style: str = "") -> None:
    """Print texts in columns, of which the last is wrapped."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row("", *(Text(printable(text), style=style) for text in row))
    console.print(table)


def _heading(console: Console, text: str) -> None:
    _line(console)
    _line(console, text, "bold")


def _line(console: Console, text: str = "", style: str = "") -> None:
    """Print a text as it is: no markup, and nothing that commands a terminal."""
    console.print(Text(printable(text), style=style), soft_wrap=True)
