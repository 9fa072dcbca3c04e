"""Pauses: tries that come less and less often, up to a time. They know not what is tried."""

from collections.abc import Iterator
from time import monotonic, sleep

FIRST_S = 0.01
LONGEST_S = 0.16


def pauses(wait_s: float) -> Iterator[None]:
    """Yield at once, and again after each pause, until ``wait_s`` are over."""
    until, pause = monotonic() + wait_s, FIRST_S
    yield
    while (left := until - monotonic()) > 0:
        sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_S)
        yield
