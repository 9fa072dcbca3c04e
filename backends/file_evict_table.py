"""Table: what each cell of a root held when somebody last looked, as a checked record of bytes.

It knows no file. Little-endian:

    0     8      magic
    8     8      f64 horizon: at which age, in seconds, objects were last evicted; 0: never yet
    16    8      u64 objects evicted, by processes that are gone
    24    8      u64 files that these could not remove
    32    4      u32 number of the last look
    36    4      u32 n, how many names follow the rows
    40    16·257 i64 bytes less what the records said then, u32 pages, u32 number of the look or 0
    ...   16·n   names of records whose values stand in the rows already
    end-4 4      u32 CRC-32 of all before it
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from unikv.backends.file_cells import CELLS, FANNED

MAGIC = b"unikvUT1"
NAMES = 1024
"""How many names a table may hold: it is read whole."""

_HEAD = Struct("<8sdQQII")
_ROW = Struct("<qII")
_CHECK = Struct("<I")
_LIMIT = 2**62
LARGEST = _HEAD.size + _ROW.size * CELLS + 16 * NAMES + _CHECK.size


class Row(NamedTuple):
    """What one cell held, less what the records said of it at that moment."""

    bytes: int = 0
    pages: int = 0
    look: int = 0  # 0: nobody looked yet


@dataclass(frozen=True, slots=True)
class Table:
    """One row a cell. Bytes in a cell now: its row's, and what the records say of it now."""

    rows: Sequence[Row] = (Row(),) * CELLS
    horizon: float = 0.0
    evicted: int = 0
    stuck: int = 0
    looks: int = 0
    folded: Sequence[str] = ()

    @property
    def known(self) -> int:
        """How many cells somebody looked at."""
        return sum(row.look > 0 for row in self.rows)

    @property
    def pages(self) -> int:
        """How many pages there were in these."""
        return sum(row.pages for row in self.rows)

    @property
    def bytes(self) -> int:
        """Bytes of all cells, less what the records say."""
        return sum(row.bytes for row in self.rows)

    def looked(self, found: Mapping[int, tuple[int, int]]) -> "Table":
        """Return the table after a look at some cells: bytes and pages of each.

        By how much the rows of unknown cells were wrong on the average, those are taken to be that
        are still unknown. Hashes spread pages evenly: where nothing was known the error of the sum
        is about 1 / sqrt(pages) of it; where cells were forgotten whose rows were right, none.
        """
        rows = list(self.rows)
        unknown = {cell for cell in range(FANNED) if not rows[cell].look}
        first = unknown.intersection(found)
        wrong = sum(found[cell][0] - rows[cell].bytes for cell in first)
        for cell, (count, pages) in found.items():
            rows[cell] = Row(count, min(pages, 2**32 - 1), self.looks + 1)
        for cell in unknown.difference(found) if first else ():
            # What was found before is in these rows already: this keeps the mean of all of it.
            more = wrong // (FANNED - len(unknown) + len(first))
            rows[cell] = Row(rows[cell].bytes + more)
        return replace(self, rows=rows, looks=self.looks + 1)

    def lost(self, cells: Collection[int]) -> "Table":
        """Return the table when nobody can say what some cells hold: as much as known ones do."""
        fanned = enumerate(self.rows[:FANNED])
        known = [row.bytes for cell, row in fanned if row.look and cell not in cells]
        mean = Row(sum(known) // len(known) if known else 0)
        rows = [
            row if cell not in cells else mean if cell < FANNED else Row()
            for cell, row in enumerate(self.rows)
        ]
        return replace(self, rows=rows)

    def forgotten(self, cells: Collection[int] = range(CELLS)) -> "Table":
        """Return the table of somebody who knows these cells no more, and has nothing better."""
        rows = [Row(row.bytes) if cell in cells else row for cell, row in enumerate(self.rows)]
        return replace(self, rows=rows)


def pack_table(table: Table) -> bytes:
    """Return a table's bytes."""
    names = [bytes(name, "ascii") for name in table.folded[-NAMES:]]
    body = b"".join(
        [
            _HEAD.pack(MAGIC, table.horizon, table.evicted, table.stuck, table.looks, len(names)),
            *(_ROW.pack(max(-_LIMIT, min(row.bytes, _LIMIT)), *row[1:]) for row in table.rows),
            *names,
        ]
    )
    return body + _CHECK.pack(crc32(body))


def parse_table(data: bytes) -> Table | None:
    """Return the table that bytes hold, None if they hold none; nobody vouches for them."""
    rows_end = _HEAD.size + _ROW.size * CELLS
    body, check = data[: -_CHECK.size], data[-_CHECK.size :]
    if len(body) < rows_end or _CHECK.unpack(check)[0] != crc32(body):
        return None
    magic, horizon, evicted, stuck, looks, count = _HEAD.unpack_from(body)
    names = body[rows_end:]
    if magic != MAGIC or count > NAMES or len(names) != 16 * count:
        return None
    rows = [Row(*row) for row in _ROW.iter_unpack(body[_HEAD.size : rows_end])]
    if not (math.isfinite(horizon) and horizon >= 0 and max(evicted, stuck, looks) < _LIMIT):
        return None
    if any(abs(row.bytes) > _LIMIT or row.look > looks for row in rows):
        return None
    if re.fullmatch(rb"[0-9a-f]*", names) is None:
        return None
    folded = [names[at : at + 16].decode() for at in range(0, len(names), 16)]
    return Table(rows, horizon, evicted, stuck, looks, folded)
