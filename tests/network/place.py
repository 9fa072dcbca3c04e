"""Place: what tests ask of a real server that a store lies on. It knows no server."""

from typing import Protocol

import pytest

SILENCE_S = 2
"""Seconds without an answer after which a store gives up by itself; clients do so earlier."""

REDIS = pytest.param("redis", marks=pytest.mark.redis)
S3 = pytest.param("s3", marks=pytest.mark.s3)
MOONCAKE = pytest.param("mooncake", marks=pytest.mark.mooncake)
"""Parameters of the fixture ``place``."""


class Place(Protocol):
    """A server, and what is true of stores on it."""

    name: str
    exact: bool  # `Client.match` is
    once: bool  # of many writers one stores a key
    keeps: bool  # what it holds outlives its process
    keeps_open: tuple[str, ...]  # descriptors that a closed store may leave

    @property
    def pids(self) -> set[int]:
        """Its processes, which are this one's children."""
        ...

    def url(self, prefix: str) -> str:
        """Return the URL of a store whose objects are its own, if the place has prefixes."""
        ...

    def kill(self) -> None:
        """End it as a loss of power would."""
        ...

    def revive(self, *, empty: bool = True) -> None:
        """Start it again where it was."""
        ...

    def freeze(self) -> None:
        """Stop it where it stands: it keeps its connections and answers nothing."""
        ...

    def thaw(self) -> None:
        """Let it run on."""
        ...

    def fill_up(self, objects: int) -> None:
        """Have it take about so many more objects, less than twice as many."""
        ...

    def make_room(self) -> None:
        """Undo `fill_up`."""
        ...
