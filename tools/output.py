"""Output: standard output that may be closed, full or no longer read. It prints nothing itself."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from unikv.errors import UnikvError


@contextmanager
def printing() -> Iterator[None]:
    """Print in this block; standard output that fails is given up, so that nothing fails again.

    Raises:
        UnikvError: standard output is closed, or could not take the text.
        BrokenPipeError: its reader has gone, as `head` does.
    """
    if sys.stdout is None:  # as the interpreter leaves it where descriptor 1 is closed
        raise UnikvError("standard output is closed: want a file, a pipe or a terminal")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up()
        raise
    except OSError as error:
        _give_up()
        raise UnikvError(f"standard output: {error.strerror or error}") from error


def _give_up() -> None:
    """Send what is still buffered nowhere; the interpreter would try again when it ends."""
    with suppress(OSError):  # a stand-in for standard output has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
