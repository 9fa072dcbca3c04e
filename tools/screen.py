"""Screen: the rich console that commands print to. It knows no command."""

import sys
from typing import TextIO

from rich.console import Console

WIDTH = 80
"""Columns where the environment tells none, or none that text could fit into."""


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """Let the error through, which rich would turn into exit status 1."""
        raise  # noqa: PLE0704 - rich calls it while it handles the error


def open_console(file: TextIO | None = None) -> Console:
    """Return a console for a stream of text, by default standard output as it is now."""
    if file is None and hasattr(sys.stdout, "reconfigure"):
        # A label may have what the terminal's code has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    console = _Screen(file=file, highlight=False)
    if console.width < 1:  # COLUMNS=0, by which nothing would be printed
        console = _Screen(file=file, highlight=False, width=WIDTH)
    return console
