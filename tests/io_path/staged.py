"""Staged: a file store whose I/O side stops at a stage of an order, in whatever process it is."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unikv import fetching, performing
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Opener, Store

STAGES = {
    "plan": (fetching, "spans_of"),
    "verify": (fetching, "_verify"),
    "encode": (performing, "_encode"),
}
"""Stages of an order, and the function that each begins with."""

LONGEST_S = 30.0


def stop_at(gate: str, told_file: str, stage: str) -> None:
    """Tell that a stage is reached, then wait as long as the gate is shut."""
    if not Path(gate).exists():
        return
    fd = os.open(told_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"hang stat {stage}\n".encode())
    os.close(fd)
    end = time.monotonic() + LONGEST_S
    while Path(gate).exists() and time.monotonic() < end:
        time.sleep(0.002)


def stopping(
    function: Callable[..., Any], gate: str, told_file: str, stage: str
) -> Callable[..., Any]:
    """Return a function that stops before it does its work."""

    def stopped(*args: Any, **options: Any) -> Any:
        stop_at(gate, told_file, stage)
        return function(*args, **options)

    return stopped


@contextmanager
def stopped_here(stage: str, gate: str, told_file: str) -> Iterator[None]:
    """Let this process's I/O threads stop at a stage."""
    module, name = STAGES[stage]
    function = getattr(module, name)
    setattr(module, name, stopping(function, gate, told_file, stage))
    try:
        yield
    finally:
        setattr(module, name, function)


def open_staged(url: str, stage: str, gate: str, told_file: str) -> Store:
    """Open a store in an I/O process that stops at a stage."""
    module, name = STAGES[stage]
    setattr(module, name, stopping(getattr(module, name), gate, told_file, stage))
    return open_store(url)


class Staged:
    """A store that other processes open by `open_staged`; in this one it has no stages."""

    def __init__(self, url: str, stage: str, gate: str, told_file: str) -> None:
        self._store = open_store(url)
        self._arguments: Sequence[object] = [url, stage, gate, told_file]

    @property
    def opener(self) -> Opener:
        return Opener("tests.io_path.staged", "open_staged", self._arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def open_slowly(url: str, gate: str, told_file: str) -> Store:
    """Open a store once a gate is open."""
    stop_at(gate, told_file, "open")
    return open_store(url)


class SlowToOpen(Staged):
    """A store that other processes open only once a gate is open."""

    def __init__(self, url: str, gate: str, told_file: str) -> None:
        super().__init__(url, "open", gate, told_file)
        self._arguments = [url, gate, told_file]

    @property
    def opener(self) -> Opener:
        return Opener("tests.io_path.staged", "open_slowly", self._arguments)


def fail_to_open() -> Store:
    """Fail as a store does whose server is not there."""
    raise StoreError("kv://user:pa55word@host: no such place")


class Unopenable(Staged):
    """A store that no other process can open."""

    @property
    def opener(self) -> Opener:
        return Opener("tests.io_path.staged", "fail_to_open", [])


def open_slow_to_close(url: str, gate: str, told_file: str) -> Store:
    """Open a store that is closed once a gate is open."""
    store = open_store(url)
    close = stopping(store.close, gate, told_file, "close")
    store.close = close  # type: ignore[method-assign]
    return store


class SlowToClose(SlowToOpen):
    """A store that an I/O process has closed only once a gate is open."""

    @property
    def opener(self) -> Opener:
        return Opener("tests.io_path.staged", "open_slow_to_close", self._arguments)
