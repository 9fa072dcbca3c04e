"""Conformance render: prints what became of each promise, for people or as JSON. It tries none."""

import json
import sys
from itertools import groupby

from rich.console import Console
from rich.text import Text

from unikv.tools.conformance_run import Finding, Findings, Verdict
from unikv.tools.screen import open_console
from unikv.tools.wording import printable

_STYLES: dict[Verdict, str] = {
    "kept": "green",
    "broken": "bold red",
    "not applicable": "yellow",
    "not tried": "yellow",
}
_TITLES = {
    "object": "whole objects",
    "range": "ranges",
    "batch": "batches",
    "list": "listings",
    "crowd": "many threads",
    "elsewhere": "other processes",
}
_INDENT = " " * 18


def print_json(findings: Findings) -> None:
    """Print findings to standard output as one JSON object, in ASCII."""
    json.dump(
        {
            "url": findings.url,
            "ok": findings.ok,
            "kept": findings.count("kept"),
            "broken": findings.count("broken"),
            "not_applicable": findings.count("not applicable"),
            "not_tried": findings.count("not tried"),
            "left_keys": list(findings.left),
            "faults": list(findings.faults),
            "promises": [
                {
                    "name": finding.promise.name,
                    "case": finding.promise.case,
                    "group": finding.promise.group,
                    "says": finding.promise.says,
                    "verdict": finding.verdict.replace(" ", "_"),
                    "reason": finding.reason,
                    "seconds": round(finding.seconds, 3),
                }
                for finding in findings.findings
            ],
        },
        sys.stdout,
        indent=2,
    )
    print()


def print_findings(findings: Findings, *, console: Console | None = None) -> None:
    """Print findings, to standard output unless a console is given."""
    if console is None:
        console = open_console()
    counts = [
        f"{count} {verdict}"
        for verdict in _STYLES
        if (count := findings.count(verdict)) or verdict in ("kept", "broken")
    ]
    _line(console, f"{findings.url}: {', '.join(counts)}", "bold")
    for group, members in groupby(findings.findings, lambda finding: finding.promise.group):
        _line(console)
        _line(console, f"  {_TITLES.get(group, group)}", "bold")
        for finding in members:
            _finding(console, finding)
    if findings.faults:
        _line(console)
        _line(console, "  beside the promises:", "bold red")
        for fault in findings.faults:
            _line(console, f"  {fault}")
    if findings.left:
        _line(console)
        _line(console, f"  {len(findings.left)} objects could not be removed:", "bold red")
        for key in findings.left[:10]:
            _line(console, f"  {key}")


def _finding(console: Console, finding: Finding) -> None:
    promise = finding.promise
    name = promise.name.replace("_", " ") + (f" ({promise.case})" if promise.case else "")
    text = Text("  ")
    text.append(f"{finding.verdict:<16}", _STYLES[finding.verdict]).append(name)
    console.print(text, soft_wrap=True)
    if finding.verdict == "broken":
        _line(console, f"{_INDENT}{promise.says}")
    if finding.reason:
        _line(console, _INDENT + finding.reason, _STYLES[finding.verdict])


def _line(console: Console, text: str = "", style: str = "") -> None:
    console.print(Text(printable(text), style), soft_wrap=True)
