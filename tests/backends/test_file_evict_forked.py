"""A store is closed without delay, whoever else was forked, and though whoever evicts hangs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.backends.bounds import BLOCK, put
from unikv.backends.file import FileStore
from unikv.store import Outcome
from unikv.testing import page_key


@contextmanager
def sleeping_fork() -> Iterator[None]:
    """Fork a process that holds all that this one has open, as a data loader's worker does."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def started(store: FileStore) -> "subprocess.Popen[bytes]":
    """Put something, and return the process that evicts, once it is at work."""
    assert put(store, *map(page_key, range(10))) == [Outcome.OK] * 10
    assert store._bound
    process = store._bound.keeper().child._process
    assert process
    until = time.monotonic() + 15
    while len(list(Path(store.root, ".usage").glob("limits-*"))) < 1:
        assert time.monotonic() < until
    time.sleep(0.5)
    return process


def test_closing_waits_for_no_fork_of_the_writer(tmp_path: Path) -> None:
    with closing(FileStore(tmp_path, max_bytes=BLOCK * 100)) as store:
        process = started(store)
        with sleeping_fork():
            begun = time.monotonic()
            store.close()
            assert time.monotonic() - begun < 2
            assert process.returncode == 0  # it ended, and was not killed


def test_exit_waits_for_no_fork_of_the_writer(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from unikv.backends.file import FileStore
from unikv.store import Item
store = FileStore({str(tmp_path)!r}, max_bytes=10**9)
assert store.put([Item("key", [b"x"])]).ok
time.sleep(0.5)
child = os.fork()
if child == 0:
    os.closerange(0, 3)
    time.sleep(60)
    os._exit(0)
print(child, time.monotonic(), flush=True)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30)
    child, ending = ran.stdout.split()
    try:
        assert time.monotonic() - float(ending) < 2.5
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_fork_that_closes_its_copy_leaves_the_evictor_of_its_parent(tmp_path: Path) -> None:
    with closing(FileStore(tmp_path, max_bytes=BLOCK * 100)) as store:
        process = started(store)
        child = os.fork()
        if child == 0:
            told = 1
            try:
                put(store, page_key("child"))
                store.close()
                told = 0
            finally:
                os._exit(told)
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(0.7)
        assert process.poll() is None


def test_an_evictor_that_hangs_is_killed_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unikv.backends.file_evict_child._END_S", 0.3)
    with closing(FileStore(tmp_path, max_bytes=BLOCK * 100)) as store:
        process = started(store)
        process.send_signal(signal.SIGSTOP)  # as one whose disk does
        begun = time.monotonic()
        store.close()
        assert time.monotonic() - begun < 1.5
        assert process.returncode == -signal.SIGKILL


def test_one_that_not_even_a_signal_ends_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unikv.backends.file_evict_child._END_S", 0.2)
    monkeypatch.setattr("unikv.backends.file_evict_child._KILLED_S", 0.2)
    with closing(FileStore(tmp_path, max_bytes=BLOCK * 100)) as store:
        process = started(store)
        process.send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(process, "kill", lambda: None)
            begun = time.monotonic()
            store.close()
            assert time.monotonic() - begun < 1.5
        process.kill()
        process.wait()
