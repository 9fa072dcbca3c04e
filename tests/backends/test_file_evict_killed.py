"""The bound holds also where whoever evicts dies again and again: writers make room themselves."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pytest

from tests.backends.bounds import BLOCK, put
from unikv.backends import file_evict_loop
from unikv.backends.file import FileStore
from unikv.backends.file_evict_child import Child
from unikv.backends.file_evict_loop import Loop
from unikv.backends.file_evict_table import Row, Table
from unikv.backends.file_limits import Limits
from unikv.store import Outcome
from unikv.testing import page_key

WRITERS = 4
OBJECTS = 200  # that fit
BOUND = OBJECTS * BLOCK
REST = 40
"""Looks at usage between two starts of whoever evicts."""


def room_beneath(root: Path) -> int:
    """Count the room that objects take, from outside."""
    with closing(FileStore(root)) as plain:
        return plain.usage().room


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[list[FileStore]]:
    """Provide stores with records of their own, as those of as many processes.

    The root is nearly full, of what somebody stored who is gone.
    """
    with ExitStack() as stack:
        with closing(FileStore(tmp_path, max_bytes=10 * BOUND)) as gone:
            put(gone, *(f"{page_key(number)}_old" for number in range(OBJECTS * 9 // 10)))
        yield [
            stack.enter_context(closing(FileStore(tmp_path, max_bytes=BOUND)))
            for _ in range(WRITERS)
        ]


def die_after(turns: int) -> Callable[[Child], None]:
    """Return what starts whoever evicts, each of whom is killed after a few turns of its loop.

    It looks at a few cells a turn, as on a machine that is very busy, and the next is long to come.
    """
    asked = count()

    def start(child: Child) -> None:
        if next(asked) % REST:
            return
        loop = Loop(child._root, Limits(BOUND))
        for _ in range(turns):
            loop.turn()
        if record := loop._ledger._record:
            os.close(record._fd)  # what it counted is left for the others to take over

    return start


@pytest.mark.parametrize("turns", [0, 2, 3])  # it forgets, then looks at some, then at more
def test_the_bound_holds_though_each_evictor_is_killed(
    writers: list[FileStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    random.seed(turns)  # which cells are looked at
    monkeypatch.setattr(file_evict_loop, "_SLICE_S", 0.0)
    monkeypatch.setattr(Child, "ensure", die_after(turns))
    most = 0
    for number in range(2 * OBJECTS):
        assert put(writers[number % WRITERS], page_key(number)) == [Outcome.OK]
        if number % WRITERS == 0:
            most = max(most, room_beneath(tmp_path))
    assert 0.9 * BOUND < most <= 1.02 * BOUND


def test_the_bound_holds_from_the_first_put_of_a_writer_that_finds_a_full_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Child, "ensure", lambda _self: None)
    with closing(FileStore(tmp_path, max_bytes=BOUND)) as store:
        assert put(store, *map(page_key, range(OBJECTS))).count(Outcome.OK) == OBJECTS
    for number in range(OBJECTS, OBJECTS + 40):
        with closing(FileStore(tmp_path, max_bytes=BOUND)) as store:
            assert put(store, page_key(number)) == [Outcome.OK]
    assert room_beneath(tmp_path) <= BOUND


def test_large_objects_pass_the_bound_no_more_than_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is made before each of them, and it fits."""
    monkeypatch.setattr(Child, "ensure", lambda _self: None)
    with closing(FileStore(tmp_path, max_bytes=BOUND)) as store:
        for number in range(60):
            assert put(store, page_key(number), blocks=OBJECTS // 9 - number % 3) == [Outcome.OK]
            assert room_beneath(tmp_path) <= BOUND


def test_an_evictor_that_worked_before_it_was_killed_is_started_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never came to work is waited for longer and longer."""
    now = 1000.0
    monkeypatch.setattr("unikv.backends.file_evict_child.time.monotonic", lambda: now)

    def starts_within(seconds: int, lives: int) -> int:
        nonlocal now
        starts, running = 0, None
        child = Child(str(tmp_path), Limits(BOUND))
        with closing(FileStore(tmp_path, max_bytes=BOUND)):
            for _ in range(seconds):
                child.ensure()
                if child._process is not running:
                    starts, running, since = starts + 1, child._process, now
                if running and now - since >= lives:
                    running.kill()
                    running.wait()
                now += 1
        child.end()
        return starts

    assert starts_within(60, lives=0) == 6
    assert starts_within(60, lives=5) == 10


def test_cells_that_were_forgotten_are_as_good_as_they_were() -> None:
    """While somebody looks at them anew usage is neither more nor less."""
    table = Table().looked({cell: (cell**2 * 1000, 1) for cell in range(257)})
    forgotten = table.forgotten()
    for cell in (255, 3, 256, 17):
        forgotten = forgotten.looked({cell: (cell**2 * 1000, 1)})
        assert forgotten.bytes == table.bytes
    assert forgotten.known == 4


def test_what_is_wrong_by_the_same_everywhere_is_right_after_one_look() -> None:
    table = Table().looked({cell: (cell * 1000, 1) for cell in range(257)}).forgotten()
    table = table.looked({7: (7500, 1)})
    assert table.bytes == sum(range(257)) * 1000 + 256 * 500
    for chunk in ([1, 2, 200], [9], range(100, 150)):
        table = table.looked({cell: (cell * 1000 + 500, 1) for cell in chunk})
        assert table.bytes == sum(range(257)) * 1000 + 256 * 500
    assert table.rows[30] == Row(30_500)
