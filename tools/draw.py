"""Draw: the layer x head grid of one page, a mark for each chunk. It knows no store."""

from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unikv.tools.findings import ChunkFinding, ChunkState, PageContent
from unikv.tools.wording import HEAD_NOUNS, count_text

MARKS: dict[ChunkState, tuple[str, str, str]] = {
    "ok": ("■", "#", "green"),
    "unverified": ("□", "?", "yellow"),
    "missing": ("·", ".", "dim"),
    "wrong_size": ("≠", "S", "bold red"),
    "damaged": ("✗", "X", "bold red"),
}
"""For each state its mark, the mark where a terminal has ASCII only, and the style."""

DRAWN = 4096
"""Chunks of the largest grid that is drawn."""

_COLUMNS = 16  # head groups of a table; more are drawn without names


def draw_page(console: Console, content: PageContent) -> None:
    """Print layers down, head groups across, token phases side by side, and what marks mean."""
    chunks, ascii_only = content.chunks, not console.encoding.startswith("utf")
    if len(chunks) > DRAWN:
        console.print(f"  {count_text(len(chunks), 'chunk')}: too many to draw")
    else:
        kind = str(content.namespace.spec["kind"])
        console.print(_table(chunks, HEAD_NOUNS.get(kind), ascii_only=ascii_only))
    counts = [
        Text.assemble((marks[ascii_only], marks[2]), f" {state.replace('_', ' ')} {count:,}")
        for state, marks in MARKS.items()
        if (count := sum(chunk.state == state for chunk in chunks))
    ]
    console.print(Text("  ").append(Text("   ").join(counts)))


def _table(chunks: tuple[ChunkFinding, ...], noun: str | None, *, ascii_only: bool) -> Table:
    by_heads = {h: list(some) for h, some in groupby(chunks, key=lambda chunk: chunk.heads)}
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("  layers", no_wrap=True)
    named = len(by_heads) <= _COLUMNS
    if named:
        for start, stop in by_heads:
            several = f"{noun}s {start}-{stop}"
            table.add_column((several if stop > start + 1 else f"{noun} {start}") if noun else "")
    else:
        size = count_text(chunks[0].heads[1], str(noun))
        table.add_column(f"{noun}s 0-{chunks[-1].heads[1]}, a mark for {size}", overflow="fold")
    for layers in dict.fromkeys(chunk.layers for chunk in chunks):
        cells = []
        for group in by_heads.values():
            cell = Text()
            for chunk in group:
                if chunk.layers == layers:
                    marks = MARKS[chunk.state]
                    cell.append(marks[ascii_only], style=marks[2])
            cells.append(cell)
        row = cells if named else [Text().join(cells)]
        table.add_row(f"  {layers[0]}-{layers[1]}", *row)
    return table
