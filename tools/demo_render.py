"""Render: the demo's report for people, and its progress. It knows no model and no process."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from unikv.tools.demo_deployment import Advance
from unikv.tools.demo_job import Done
from unikv.tools.demo_report import DemoReport, read_over_needed
from unikv.tools.screen import open_console

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")
"""One for each writer in turn, so that the drawn grid shows the shape of the deployment."""

_NAMES_SHOWN = 4


class Steps:
    """Progress bars on standard error, where that is a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        # The stream of now: the model's noisy parts redirect sys.stderr while they run.
        console = open_console(sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    @contextmanager
    def step(self, text: str, units: int = 1) -> Iterator[Advance]:
        """Show a step while it runs; what is yielded counts one of its units as done."""
        task = self._progress.add_task(text, total=units)
        yield lambda: self._progress.advance(task)
        self._progress.update(task, completed=units)


def print_report(report: DemoReport) -> None:
    """Print the whole report to standard output, 80 columns wide where no terminal says more."""
    console = open_console()
    _print_identity(console, report)
    for title, table in (
        (f"Written by {report.write}, one process a rank", _written_table(report)),
        (
            f"Read by {report.read}, one process a rank; ratio: payload read / needed",
            _read_table(report),
        ),
        ("Grid of a page: who wrote (w) and who read (r) each chunk", _grid_table(report)),
    ):
        console.print(f"\n{title}", style="bold")
        console.print(table)
    _print_checks(console, report)
    _print_times(console, report)
    console.print("\nThe model (a very small one) answers:", style="bold")
    console.print(report.generated.text.strip(), markup=False)
    stored = report.stored
    size = f"{stored.objects:,} objects of this prompt, {stored.bytes:,} bytes"
    if stored.kept:
        console.print(f"\nThe store holds {size}. Look into it:")
        console.print(f"  {report.inspect}", style="bold", markup=False, soft_wrap=True)
    else:
        console.print(f"\nThe store held {size}; --no-keep removed it.")


def _print_identity(console: Console, report: DemoReport) -> None:
    spec, prompt, namespace = report.namespace.spec, report.prompt, report.namespace
    cuts = " ".join(f"{a}-{b}" for a, b in pairwise(namespace.layer_cuts))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    heads, grid = f"{spec.kv_heads} KV heads of {spec.head_dim}", report.grid
    facts = {
        "model": f"{report.model}, {spec.layers} layers, {heads}, {spec.dtype}",
        "token": f"{prompt.page_bytes // prompt.page_tokens:,} bytes",
        "page": f"{prompt.page_tokens} tokens, {prompt.page_bytes:,} bytes",
        "prompt": f"{prompt.tokens:,} tokens: {prompt.pages} pages, {prompt.tail} tokens behind",
        "grid": f"layers {cuts}; heads a chunk: {grid.heads_per_chunk}; {grid.reason}",
        "component": f"{namespace.component}, the only one of this model: every page is needed",
        "namespace": namespace.digest,
    }
    for name, value in facts.items():
        table.add_row(name, Text(value))
    console.print(table)


def _rank_table(columns: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in ("rank", "layers", "heads"):
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _box_words(done: Done) -> tuple[str, str, str]:
    box = done.job.box
    return (
        done.job.name,
        f"{box.layers.start}-{box.layers.stop}",
        f"{box.heads.start}-{box.heads.stop}",
    )


def _written_table(report: DemoReport) -> Table:
    table = _rank_table(("pages", "stored", "existed", "bytes", "seconds"))
    for done in report.written:
        answer = done.answer
        table.add_row(
            *_box_words(done),
            str(answer.pages),
            f"{answer.stored:,}",
            f"{answer.existed:,}",
            f"{answer.bytes_written:,}",
            f"{answer.seconds:.3f}",
        )
    return table


def _read_table(report: DemoReport) -> Table:
    columns = ("requests", "payload", "its share", "ratio", "headers", "seconds")
    table = _rank_table(columns)
    for done in report.loaded:
        answer = done.answer
        table.add_row(
            *_box_words(done),
            f"{answer.requests:,}",
            f"{done.payload:,}",
            f"{done.share:,}",
            f"{read_over_needed((done,)):.3f}",
            f"{answer.bytes_headers:,}",
            f"{answer.seconds:.3f}",
        )
    if len(report.loaded) > 1:
        table.add_row(
            "all",
            "",
            "",
            f"{sum(done.answer.requests for done in report.loaded):,}",
            f"{sum(done.payload for done in report.loaded):,}",
            f"{sum(done.share for done in report.loaded):,}",
            f"{read_over_needed(report.loaded):.3f}",
            f"{sum(done.answer.bytes_headers for done in report.loaded):,}",
            "",
        )
    return table


def _grid_table(report: DemoReport) -> Table:
    """Draw the grid: layer chunks down, head groups across; who wrote and who read each cell."""
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("layers", no_wrap=True)
    rows: dict[tuple[int, int], list[Text]] = {}
    colours = {done.job.name: COLOURS[i % len(COLOURS)] for i, done in enumerate(report.written)}
    for cell in report.cells:
        if cell.layers == report.cells[0].layers:
            start, stop = cell.heads
            table.add_column(f"head {start}" if stop == start + 1 else f"heads {start}-{stop}")
        colour = colours[cell.wrote[0]] if cell.wrote else "dim"
        text = Text(f"w {_list_names(cell.wrote)}\nr {_list_names(cell.read)}", style=colour)
        rows.setdefault(cell.layers, []).append(text)
    for (start, stop), cells in rows.items():
        table.add_row(f"{start}-{stop}", *cells)
    return table


def _list_names(names: Sequence[str]) -> str:
    if len(names) <= _NAMES_SHOWN:
        return ", ".join(names) or "nobody"
    return f"{', '.join(names[: _NAMES_SHOWN - 1])} and {len(names) - _NAMES_SHOWN + 1} more"


def _print_checks(console: Console, report: DemoReport) -> None:
    generated, checks = report.generated, report.checks
    size = report.prompt.pages * report.prompt.page_bytes
    words = {
        "kv_bitwise_equal": f"KV bitwise equal to that in memory ({size:,} bytes)",
        "tokens_equal": f"tokens equal, {len(generated.loaded)} generated from each cache",
        "other_slots_untouched": "pool slots of no loaded page untouched",
        "exact_bytes_read": "readers of whole head groups read exactly their share of the payload",
    }
    for name, holds in checks.items():
        mark, colour = ("yes", "green") if holds else ("NO", "bold red")
        console.print(Text.assemble((f"{mark:4}", colour), words[name]))
    for line in (*report.stops, *report.differences):
        console.print(Text(f"    {line}", style="red"))


def _print_times(console: Console, report: DemoReport) -> None:
    times, prompt = report.times, report.prompt
    loaded = min(done.answer.pages for done in report.loaded) * prompt.page_tokens
    again = max(1, prompt.tokens - loaded)
    console.print(
        f"\nTime to first token\n"
        f"  cold {times.cold:8.3f} s  prefill of {prompt.tokens:,} tokens\n"
        f"  warm {times.warm:8.3f} s  {times.load:.3f} s load by the slowest rank "
        f"+ {times.tail:.3f} s for {again} tokens\n"
        "  Starting processes is in neither. What was just written is read back from the\n"
        "  system's page cache where the store is a local folder.",
        markup=False,
    )
