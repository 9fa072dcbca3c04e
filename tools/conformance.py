"""Conformance: the `unikv conformance` command. It knows its words; others try, and others print.

What is heavy is imported when the command runs, so that ``unikv --help`` answers at once.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unikv.tools.conformance_run import Tick

DESCRIPTION = """\
Try on a live store what every store promises: whole objects, exact ranges, batches, listings,
many threads, other processes. It stores some 20 MB under keys that nobody else uses, a few MB at
a time, and removes them; other objects of the store stay as they are.
"""

EXIT_STATUS = """\
exit status:
  0  every promise that applies is kept
  1  a promise is broken, something that was stored could not be removed, or a call hangs or
     raises where it should not
  2  wrong usage, or the store cannot be opened or stored to; one line on stderr says why
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the words and options of ``unikv conformance``."""
    parser.description, parser.epilog = DESCRIPTION, EXIT_STATUS
    parser.add_argument("url", metavar="URL", help="a store, such as file:///tmp/trial")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="try promises whose name has TEXT in it"
    )
    parser.add_argument(
        "--limit",
        metavar="S",
        type=seconds,
        default=120.0,
        help="seconds that one promise may take, and opening, a first listing and removing "
        "(%(default)g); nothing is tried after what hangs",
    )


def run(args: argparse.Namespace) -> int:
    """Try the promises on the store that ``args`` name; print what became of each.

    Returns:
        0, or 1 where a promise is broken.

    Raises:
        UnikvError: the store cannot be opened, or nothing be stored there.
    """
    from unikv.tools.conformance_render import print_findings, print_json
    from unikv.tools.conformance_run import try_promises
    from unikv.tools.conformance_subject import HangError
    from unikv.tools.output import printing

    try:
        with _progress() as tick:
            findings = try_promises(args.url, only=args.only, limit_s=args.limit, tick=tick)
    except HangError as error:
        with suppress(OSError):
            if sys.stderr is not None:  # print would choose standard output
                print(f"unikv: {error}", file=sys.stderr, flush=True)
        _leave(2)
        return 2
    try:
        with printing():
            (print_json if args.json else print_findings)(findings)
    finally:
        if findings.hung:
            _leave(1)
    return 0 if findings.ok else 1


def _leave(status: int) -> None:
    """End this process, and those that it started: the interpreter would wait for what hangs."""
    from unikv.testing_elsewhere import end_others

    end_others()
    os._exit(status)


def seconds(text: str) -> float:
    """Return a number above zero; what argparse calls a type."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r:.60}: want a number of seconds, such as 120")
    return value


@contextmanager
def _progress() -> Iterator[Tick | None]:
    """Show how far it is, where somebody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("opening the store") as status:
        yield lambda done, of, name: status.update(f"{done} of {of}: {name.replace('_', ' ')}")
