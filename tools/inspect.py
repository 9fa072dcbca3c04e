"""Inspect: the `unikv inspect` command. It knows its words; others look, and others print.

What is heavy is imported when the command runs, so that ``unikv --help`` answers at once.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from unikv.tools.survey import Tick


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the words and options of ``unikv inspect``."""
    parser.add_argument(
        "url", metavar="URL", help="a store, such as file:///var/kv; or the path of an object file"
    )
    parser.add_argument(
        "target",
        metavar="KEY|PAGE|FILE",
        nargs="?",
        help="an object or hint record by its key, a page by its hash (or its first 8 or more "
        "digits), or the file of one object",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; docs/inspect.md names it")
    parser.add_argument(
        "--verbose", action="store_true", help="tell which pages lack which chunks; cut no list"
    )
    parser.add_argument(
        "--verify", action="store_true", help="of a store: read every object and check its tags"
    )
    parser.add_argument(
        "--tag-key-file",
        metavar="PATH",
        type=Path,
        help="file whose bytes, all of them, are the secret of keyed tags",
    )


def run(args: argparse.Namespace) -> int:
    """Look at what ``args`` ask for and print it; return the exit status.

    Returns:
        0, or 1 where something is damaged or could not be verified though that was asked for.

    Raises:
        UnikvError: there is nothing to look at, and why.
    """
    from unikv.tools.lookup import inspect
    from unikv.tools.output import printing
    from unikv.tools.reading import read_secret
    from unikv.tools.render import print_findings, print_json

    with _progress(wanted=args.verify and args.target is None) as tick:
        findings = inspect(
            args.url,
            args.target,
            verify=args.verify,
            verbose=args.verbose,
            tag_key=None if args.tag_key_file is None else read_secret(args.tag_key_file),
            tick=tick,
        )
    with printing():
        if args.json:
            print_json(findings)
        else:
            print_findings(findings, verbose=args.verbose)
    return 0 if findings.ok else 1


@contextmanager
def _progress(*, wanted: bool) -> Iterator[Tick | None]:
    """Show how far a verification is, where somebody watches."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console

    from unikv.tools.wording import size_text

    with Console(stderr=True).status("verifying") as status:
        yield lambda objects, size: status.update(
            f"verifying: {objects:,} objects, {size_text(size)} so far"
        )
