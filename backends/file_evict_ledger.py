"""Ledger: how many bytes lie beneath a root, known to all its processes without a scan.

In ``.usage/`` each process keeps a record of what it added and took, and a table says what each
cell held, less the records, when somebody last looked. Their sum is what lies there now. The truth
is the folders: every look at a cell replaces its row, and a table that is lost or damaged is a
table of cells that nobody knows. It evicts nothing.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from unikv.backends.batch import explain
from unikv.backends.file_cells import CELLS
from unikv.backends.file_evict_place import USAGE, open_file, opened, write_file
from unikv.backends.file_evict_record import (
    EVICTED,
    FIRST_CELL,
    ROWS,
    STUCK,
    Record,
    is_record,
    lock_of_dead,
    read_rows,
)
from unikv.backends.file_evict_table import LARGEST, Table, pack_table, parse_table
from unikv.backends.file_folders import names_in
from unikv.backends.file_names import OTHERS, is_folder

_LOCK, _TABLE = "lock", "table"
_RECENT = (
    64  # names that stand in the table though their file is gone: a reader saw it a moment ago
)


class Reading(NamedTuple):
    """What the ledger says at one moment."""

    bytes: int  # beneath the root, as near as it is known; not below 0
    balance: int  # the same sum, which is below 0 where the ledger is wrong
    records: int  # processes that count, and dead ones that nobody took over yet
    evicted: int  # objects so far
    stuck: int  # how often a file could not be removed
    table: Table


class Held(NamedTuple):
    """What a look found in one cell, with what the records said of it before and after."""

    bytes: int
    pages: int
    before: int
    after: int


class Ledger:
    """One process's hold on the ledger of a root. Its threads share it; a fork must not.

    Args:
        root: the folder.
        again: whether to make the ledger again should somebody remove it.
        strict: whether to raise where there is none; else reading it does, and counting waits.

    Raises:
        StoreError: its folder cannot be made, is a link, or takes no locks.
    """

    def __init__(self, root: str, *, again: bool = True, strict: bool = True) -> None:
        self._root = root
        self._again = True
        self._record: Record | None = None
        self._lost: set[int] = set()  # cells of which something could not be counted
        self._making = threading.Lock()
        self._closed = False
        try:
            with self.hold() as held:
                if held and not any(
                    is_folder(found.name) or found.name == OTHERS for found in Path(root).iterdir()
                ):
                    self._begin()
        except OSError as error:
            if strict:
                doing = f"{root}/{USAGE}, want a folder that takes locks and is no link"
                raise explain(doing, error) from error
        self._again = again

    def add(self, cell: int, delta: int) -> None:
        """Count bytes that this process stored in a cell, or with a minus took from it.

        Where that cannot be written, the cell is no longer known, and a look at it finds them.
        """
        if not self._closed:
            try:
                self._mine().add(cell, delta)
            except OSError:
                self._lost.add(cell)
                self._let_go()

    def count(self, *, evicted: int = 0, stuck: int = 0) -> None:
        """Count objects that this process evicted, and files that it could not remove."""
        with suppress(OSError):
            for row, times in ((EVICTED, evicted), (STUCK, stuck)):
                if times:
                    self._mine().count(row, times)

    def read(self) -> Reading:
        """Add up what lies beneath the root.

        Raises:
            OSError: the ledger cannot be read, or lacks what could not be counted.
        """
        if self._lost:
            self._mend()
        with self._folder() as folder:
            names = [name for name in names_in(folder) if is_record(name)]
            heads = {
                name: head for name in names if (head := self._heads(folder, name)) is not None
            }
            # Read last: a record that went meanwhile stands in it, one that still is there does
            # not count if it stands in it.
            table = self._table(folder)
            record = self._record
            if record is not None and not record.is_in(folder):  # somebody cleared the folder
                self._let_go()
        live = [rows for name, rows in heads.items() if name not in table.folded]
        total, evicted, stuck = (sum(rows[row] for rows in live) for row in range(FIRST_CELL))
        balance = table.bytes + total
        evicted, stuck = table.evicted + evicted, table.stuck + stuck
        return Reading(max(balance, 0), balance, len(live), evicted, stuck, table)

    def table(self) -> Table:
        """Return the table alone; where there is none, one that knows nothing."""
        try:
            with self._folder() as folder:
                return self._table(folder)
        except OSError:
            return Table()

    def said_of(self, cells: Sequence[int]) -> list[int]:
        """Return what all records say of some cells now. Only who holds the lock may."""
        said = [0] * len(cells)
        with self._folder() as folder:
            for name in filter(is_record, names_in(folder)):
                known = self._known(folder, name, [FIRST_CELL + cell for cell in cells])
                for place, value in enumerate(known or ()):
                    said[place] += value
        return said

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Hold the one lock of the root, without waiting for it; yield whether it is held."""
        with self._folder() as folder:
            lock = open_file(folder, _LOCK)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child may hold the file open, too
        finally:
            os.close(lock)

    def note_looks(self, found: Mapping[int, Held]) -> None:
        """Write what looks at cells found. Only who holds the lock may.

        What came or went during a look may stand in it or not: half of it is taken.
        """
        rows = {
            cell: (held.bytes - (held.before + held.after) // 2, held.pages)
            for cell, held in found.items()
        }
        self._change(lambda table: table.looked(rows))

    def note_horizon(self, seconds: float) -> None:
        """Write at which age objects are evicted now. Only who holds the lock may."""
        self._change(lambda table: replace(table, horizon=seconds))

    def forget(self) -> None:
        """Write that no cell is known. Only who holds the lock may."""
        self._change(Table.forgotten)

    def fold(self) -> int:
        """Take over the records of dead processes. Only who holds the lock may.

        Returns:
            How many there were.
        """
        with self._folder() as folder:
            names = [name for name in names_in(folder) if is_record(name.removesuffix(".new"))]
            mine = self._record.name if self._record else ""
            return sum(self._fold_one(folder, name) for name in names if name != mine)

    def close(self) -> None:
        """Leave this process's record to the others; what it counts from now on is lost."""
        self._closed = True
        self._let_go()

    def abandon(self) -> None:
        """Let go of the parent's record in a forked child, where its locks may be held for ever."""
        if self._record is not None:
            self._record.abandon()

    def _mend(self) -> None:
        """Write that cells are not known of which something could not be counted.

        Raises:
            OSError: it still cannot, or not now.
        """
        self._mine()
        with self.hold() as held:
            if not held:
                raise BlockingIOError(
                    "what was not counted is to be noted, and somebody else is at it"
                )
            lost = set(self._lost)
            self._lost.difference_update(lost)  # before: what fails meanwhile is for the next time
            try:
                self._change(lambda table: table.forgotten(lost))
            except OSError:
                self._lost.update(lost)
                raise

    def _begin(self) -> None:
        """Write the table of a root that holds nothing yet: there is nothing to find out."""
        with self._folder() as folder:
            if not any(map(is_record, names_in(folder))) and not self._table(folder).known:
                self._write(folder, Table().looked(dict.fromkeys(range(CELLS), (0, 0))))

    def _mine(self) -> Record:
        """Return this process's record, made at the first call."""
        record = self._record
        if record is None:
            with self._making, self._folder() as folder:
                record = self._record = self._record or Record(folder)
        return record

    def _let_go(self) -> None:
        with self._making:
            record, self._record = self._record, None
        if record is not None:
            record.close()

    def _fold_one(self, folder: int, name: str) -> bool:
        lock = lock_of_dead(folder, name)
        if lock is None:
            return False
        try:
            table = self._table(folder)
            if is_record(name) and name not in table.folded:
                head = self._heads(folder, name) or [0] * FIRST_CELL
                values = read_rows(folder, name, range(FIRST_CELL, ROWS))
                rows = [
                    row._replace(bytes=row.bytes + (value or 0))
                    for row, value in zip(table.rows, values, strict=True)
                ]
                there = names_in(folder)
                old, new = table.folded[:-_RECENT], table.folded[-_RECENT:]
                table = replace(
                    table,
                    rows=rows,
                    evicted=table.evicted + max(head[EVICTED], 0),
                    stuck=table.stuck + max(head[STUCK], 0),
                    folded=[*(other for other in old if other in there), *new, name],
                )
                # A row that is damaged says nothing: somebody has to look at its cell again.
                lost = [cell for cell, value in enumerate(values) if value is None]
                self._write(folder, table.lost(lost) if lost else table)
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        except OSError:  # a bad block, a full disk: it stands for itself until later
            return False
        finally:
            os.close(lock)
        return True

    def _change(self, change: Callable[[Table], Table]) -> None:
        with self._folder() as folder:
            self._write(folder, change(self._table(folder)))

    def _write(self, folder: int, table: Table) -> None:
        write_file(folder, _TABLE, pack_table(table))

    def _table(self, folder: int) -> Table:
        """Return the table, or the one of somebody who knows nothing."""
        try:
            fd = os.open(_TABLE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError:
            return Table()
        try:
            return parse_table(os.pread(fd, LARGEST + 1, 0)) or Table()
        except OSError:  # a folder, a pipe
            return Table()
        finally:
            os.close(fd)

    def _heads(self, folder: int, name: str) -> list[int] | None:
        """Return the rows before those of cells; damaged ones say nothing."""
        return self._known(folder, name, range(FIRST_CELL))

    def _known(self, folder: int, name: str, rows: Sequence[int]) -> list[int] | None:
        """Return some rows of a record, None where nothing of that name can be read."""
        try:
            return [value or 0 for value in read_rows(folder, name, rows)]
        except OSError:
            return None

    def _folder(self) -> AbstractContextManager[int]:
        return opened(self._root, make=self._again and not self._closed)
