"""Stopwatch: seconds spent in each stage of a call. It knows no stage's meaning."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter


class Stopwatch:
    """Adds up wall-clock seconds by stage name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the ``with`` block as stage ``name``."""
        begun = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - begun

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count times by stage that were taken elsewhere."""
        for name, spent in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
