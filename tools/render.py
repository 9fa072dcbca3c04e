"""Render: prints what inspect found, for people or as JSON. It reads no store."""

import json
import sys
from collections.abc import Iterable, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unikv.tools.draw import draw_page
from unikv.tools.findings import (
    Fault,
    Findings,
    HintFindings,
    NamespaceContent,
    ObjectFindings,
    PageContent,
    PageFindings,
    StoreFindings,
    TaggedBytes,
    TagState,
    Unknown,
    as_json,
)
from unikv.tools.screen import open_console
from unikv.tools.wording import (
    brief_lines,
    content_lines,
    count_text,
    namespace_lines,
    printable,
    size_text,
    some,
)

SHOWN = 10
"""Rows of a list of faults, and of pages that lack chunks, unless all were asked for."""

SLABS_SHOWN = 256
"""Rows of a slab table, unless all were asked for."""

TAG_WORDS: dict[TagState, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "bad": ("BAD", "bold red"),
    "absent": ("absent", "bold red"),
    "keyed": ("keyed", "yellow"),
}
"""What is printed for the state of a tag, and in which style."""


def print_json(findings: Findings) -> None:
    """Print findings to standard output as one JSON object, in ASCII."""
    json.dump(as_json(findings), sys.stdout, indent=2)
    print()


def print_findings(
    findings: Findings, *, verbose: bool = False, console: Console | None = None
) -> None:
    """Print findings, to standard output unless a console is given; ``verbose`` cuts no list."""
    if console is None:
        console = open_console()
    _Printer(console, verbose=verbose).show(findings)


class _Printer:
    """Prints to one console. Every text goes through `_text`."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose

    def show(self, findings: Findings) -> None:
        if isinstance(findings, StoreFindings):
            self._store(findings)
        elif isinstance(findings, PageFindings):
            self._page(findings)
        elif isinstance(findings, ObjectFindings):
            self._object(findings)
        else:
            self._hint(findings)

    def _store(self, found: StoreFindings) -> None:
        namespaces = count_text(len(found.namespaces), "namespace")
        objects = f"{count_text(found.objects, 'object')}, {size_text(found.bytes)}"
        self._line(f"{found.url}: {namespaces}, {objects}", "bold")
        for content in found.namespaces:
            self._line()
            self._facts({**namespace_lines(content.namespace), **content_lines(content)})
            self._content_faults(content)
        self._unknown(found.unknown)
        self._foreign(found.foreign_keys, size_text(found.foreign_bytes), found.foreign)
        self._line()
        self._line(f"{count_text(found.hint_records, 'hint record')}")
        damaged = found.damaged_hints
        self._faults(count_text(len(damaged), "damaged hint record"), len(damaged), damaged)

    def _content_faults(self, content: NamespaceContent) -> None:
        for page in content.incomplete:
            rest = page.missing - len(page.chunks)
            more = f" and {rest:,} more" if rest else ""
            self._line(f"  page {page.page} lacks {' '.join(page.chunks)}{more}")
        count = content.wrong_size_objects
        words = count_text(count, "object of wrong size", "objects of wrong size")
        self._faults(words, count, content.wrong_size)
        count = content.damaged_objects
        self._faults(count_text(count, "damaged object"), count, content.damaged)

    def _page(self, found: PageFindings) -> None:
        self._line(f"page {found.page} in {found.url}", "bold")
        for content in found.namespaces:
            self._line()
            self._facts({**brief_lines(content.namespace), **_page_lines(content)})
            self._line()
            draw_page(self._console, content)
            for chunk in content.chunks:
                if chunk.detail and chunk.state in ("damaged", "wrong_size"):
                    self._line(f"  {chunk.chunk}: {chunk.detail}", "red")
            reasons = {chunk.detail for chunk in content.chunks if chunk.state == "unverified"}
            if reasons:
                self._line(f"  not verified: {'; '.join(sorted(reasons))}", "yellow")
        self._unknown(found.unknown)
        self._foreign(len(found.foreign), "beginning so", found.foreign)

    def _object(self, found: ObjectFindings) -> None:
        self._line(f"object {found.key or '(no key)'}", "bold")
        size = f"{found.size_bytes:,} bytes"
        if found.wanted_bytes not in (None, found.size_bytes):
            size += f", want {found.wanted_bytes:,}"
        self._facts({"from": found.source, "size": size, **_header_lines(found)})
        self._line()
        if found.namespace:
            self._facts({**namespace_lines(found.namespace), "slab": _slab_text(found)})
        else:
            self._line("namespace unknown: the object does not describe it")
        if found.tagged:
            self._line()
            self._console.print(self._tag_table(found.tagged))
        if any(part.state == "keyed" for part in found.tagged):
            self._line("keyed: needs the key (--tag-key-file)", "yellow")
        self._own_faults(found.faults)

    def _hint(self, found: HintFindings) -> None:
        self._line(f"hint record {found.key}", "bold")
        size, label = f"{found.size_bytes:,} bytes", found.label or "(none)"
        self._facts({"from": found.source, "size": size, "label": label})
        if found.namespace:
            self._line()
            self._facts(namespace_lines(found.namespace))
        self._own_faults(found.faults)

    def _tag_table(self, tagged: tuple[TaggedBytes, ...]) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in ("bytes", "layer", "offset", "size"):
            table.add_column(name, justify="left" if name == "bytes" else "right", no_wrap=True)
        table.add_column("tag", no_wrap=True)
        table.add_column("verified", no_wrap=True)
        rows = [part for part in tagged if not part.what.startswith("slab")]
        slabs = [part for part in tagged if part.what.startswith("slab")]
        shown = slabs if self._verbose else slabs[:SLABS_SHOWN]
        for part in [*rows[:1], *shown, *rows[1:]]:
            word, style = TAG_WORDS[part.state]
            layer = "" if part.layer is None else str(part.layer)
            sizes = f"{part.offset:,}", f"{part.size_bytes:,}"
            table.add_row(part.what, layer, *sizes, part.tag, Text(word, style=style))
        if len(shown) < len(slabs):
            table.caption = f"{len(slabs) - len(shown):,} more slabs (--verbose)"
        return table

    def _unknown(self, unknown: Iterable[Unknown]) -> None:
        rows = list(unknown)
        for row in rows if self._verbose else rows[:SHOWN]:
            size = f"{count_text(row.objects, 'object')}, {size_text(row.bytes)}"
            self._line()
            self._line(f"unknown namespace {row.digest}: {size}; {row.reason}", "yellow")
        if not self._verbose and len(rows) > SHOWN:
            self._line(f"and {len(rows) - SHOWN:,} more unknown namespaces", "yellow")

    def _foreign(self, count: int, more: str, keys: tuple[str, ...]) -> None:
        if count:
            shown = keys if self._verbose else keys[:SHOWN]
            dots = ", ..." if len(shown) < count else ""
            self._line()
            self._line(f"{count_text(count, 'foreign key')}, {more}: {', '.join(shown)}{dots}")

    def _faults(self, heading: str, objects: int, faults: tuple[Fault, ...]) -> None:
        """Print faults of many objects: fewer than those, or more where one has several."""
        if not objects:
            return
        self._line()
        self._line(f"  {heading}:", "bold red")
        shown = faults if self._verbose else faults[:SHOWN]
        for fault in shown:
            self._line(f"    {fault.key} {fault.where}: {fault.detail}", "red")
        if len(shown) < max(objects, len(faults)):
            self._line(f"    and more{'' if self._verbose else ' (--verbose)'}", "red")

    def _own_faults(self, faults: tuple[Fault, ...]) -> None:
        """Print the faults of the one object that all this is about."""
        if not faults:
            return
        self._line()
        self._line(f"  {count_text(len(faults), 'fault')}:", "bold red")
        for fault in faults if self._verbose else faults[:SHOWN]:
            self._line(f"    {fault.where}: {fault.detail}", "red")
        if not self._verbose and len(faults) > SHOWN:
            self._line(f"    and {len(faults) - SHOWN:,} more (--verbose)", "red")

    def _facts(self, lines: Mapping[str, str]) -> None:
        width = max(map(len, lines))
        for name, value in lines.items():  # not cut into lines, so that hashes can be copied
            text = Text.assemble((f"  {name:{width}}  ", "dim"), _text(value))
            self._console.print(text, soft_wrap=True)

    def _line(self, text: str = "", style: str = "") -> None:
        self._console.print(_text(text, style), soft_wrap=True)


def _text(text: str, style: str = "") -> Text:
    """Return text that is taken as it is: no markup, no control characters, no line ends."""
    return Text(printable(text), style=style)


def _page_lines(content: PageContent) -> dict[str, str]:
    parents, indices = content.parents, content.page_indices
    there = sum(chunk.size_bytes is not None for chunk in content.chunks)
    disagree = "objects disagree: "
    return {
        "parent": f"{disagree if len(parents) > 1 else ''}{some(parents) or 'none, or not known'}",
        "page index": f"{disagree if len(indices) > 1 else ''}{some(indices) or 'not known'}",
        "stored": f"{there:,} of {count_text(len(content.chunks), 'chunk')}",
    }


def _header_lines(found: ObjectFindings) -> dict[str, str]:
    header = found.header
    if header is None:
        return {"header": "damaged: its fields cannot be read"}
    known, index = found.namespace, header.page_index
    lines = {
        "format version": str(header.version),
        "namespace": "" if known and known.digest == header.namespace else header.namespace,
        "page": header.page,
        "parent": header.parent or "none, or not known",
        "page index": "not known" if index is None else str(index),
        "layers": f"{header.layers[0]}-{header.layers[1]} ({count_text(header.slabs, 'slab')})",
        "group": "" if header.group is None else str(header.group),
        "phase": "" if header.phase is None else str(header.phase),
        "header": f"{header.header_bytes:,} bytes",
        "payload": f"{header.payload_bytes:,} bytes, codec {header.codec}, tags {header.tags}",
    }
    return {name: value for name, value in lines.items() if value}


def _slab_text(found: ObjectFindings) -> str:
    assert found.namespace
    parts = found.namespace.slab_parts
    return "; ".join(
        f"{p.name} at {p.offset:,}: {count_text(p.rows, 'row')} of {p.row_bytes:,} bytes"
        for p in parts
    )
