"""Ledger: usage is the sum of what all say, whoever dies or lies; looks at the folders heal it."""

import os
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends.file_cells import CELLS, FANNED, cell_name, cell_of
from unikv.backends.file_evict_ledger import Held, Ledger
from unikv.backends.file_evict_place import USAGE
from unikv.backends.file_evict_record import FIRST_CELL, ROWS, Record, read_rows
from unikv.backends.file_evict_table import Row, Table, pack_table, parse_table
from unikv.backends.file_names import folder_of, path_of
from unikv.errors import StoreError
from unikv.testing import page_key

ROWS_OF_TABLES = st.lists(
    st.builds(Row, st.integers(-(2**61), 2**61), st.integers(0, 2**32 - 1), st.integers(0, 7)),
    min_size=CELLS,
    max_size=CELLS,
)
NAMES = st.lists(st.from_regex(r"\A[0-9a-f]{16}\Z"), max_size=5)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / USAGE).iterdir())


def records(root: Path) -> list[Path]:
    return [path for path in (root / USAGE).iterdir() if len(path.name) == 16]


def all_known(ledger: Ledger, size: int = 0) -> None:
    """Note a look at every cell, which found so many bytes in each."""
    said = ledger.said_of(range(CELLS))
    ledger.note_looks({cell: Held(size, 1, said[cell], said[cell]) for cell in range(CELLS)})


# Cells


def test_a_path_tells_its_cell() -> None:
    root = "/some/röot"
    for i in range(50):
        key = page_key(i)
        cell = cell_of(path_of(root, key), len(root.encode()))
        assert cell_name(cell) == key[:2]
        assert cell == cell_of(f"/{folder_of(key)}/".encode(), 0)
    for key in ("ns_0_0", "ab", "_", "a" * 63):
        assert cell_of(path_of(root, key), len(root.encode())) == FANNED


# Records and tables as bytes that nobody vouches for


@given(ROWS_OF_TABLES, st.floats(0, 1e9), st.integers(7, 2**31), NAMES)
def test_a_table_comes_back(rows: list[Row], horizon: float, looks: int, folded: list[str]) -> None:
    table = Table(rows, horizon, 3, 4, looks, folded)
    assert parse_table(pack_table(table)) == table


@given(st.binary(max_size=5000))
def test_junk_is_no_table(data: bytes) -> None:
    assert parse_table(data) is None
    assert parse_table(data + crc32(data).to_bytes(4, "little")) is None


@given(st.integers(0, len(pack_table(Table())) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_no_table(at: int, flip: int) -> None:
    data = bytearray(pack_table(Table()))
    data[at] ^= flip
    assert parse_table(bytes(data)) is None
    assert parse_table(bytes(data[:at])) is None


@pytest.mark.parametrize("horizon", [float("nan"), float("inf"), -1.0])
def test_a_table_with_a_wrong_number_is_none(horizon: float) -> None:
    assert parse_table(pack_table(Table(horizon=horizon))) is None
    assert parse_table(pack_table(Table(rows=[Row(1, 1, 9)] * CELLS, looks=8))) is None


def test_a_record_tells_damaged_rows(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    record = Record(folder)
    record.add(5, 1000)
    record.add(256, -7)
    path = tmp_path / record.name
    assert read_rows(folder, record.name, [0, 5 + FIRST_CELL, ROWS - 1]) == [993, 1000, -7]
    data = bytearray(path.read_bytes())
    data[16 + 16 * (FIRST_CELL + 5)] ^= 1
    path.write_bytes(data)
    assert read_rows(folder, record.name, [0, 5 + FIRST_CELL]) == [993, None]
    (tmp_path / ("f" * 16)).write_bytes(bytes(data))  # another's name does not fit its rows
    assert set(read_rows(folder, "f" * 16, range(ROWS))) == {None}
    path.write_bytes(data[:40])
    assert read_rows(folder, record.name, [0, 1, 2]) == [993, None, None]
    record.close()
    os.close(folder)


# Usage


def test_usage_is_known_from_the_first_byte_of_a_new_root(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    assert ledger.read().table.known == CELLS
    ledger.add(3, 8192)
    ledger.add(3, -4096)
    ledger.add(FANNED, 4096)
    assert ledger.read().bytes == 8192
    assert ledger.said_of([3, 4, FANNED]) == [4096, 0, 4096]
    ledger.close()


def test_a_root_with_objects_is_not_known_until_somebody_looked(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    ledger = Ledger(str(tmp_path))
    assert ledger.read().table.known == 0
    ledger.add(3, 8192)
    assert ledger.read().bytes == 8192  # as much as that there is
    with ledger.hold() as held:
        assert held
        all_known(ledger, 4096)
    assert ledger.read().bytes == CELLS * 4096
    ledger.add(3, 8192)
    assert ledger.read().bytes == CELLS * 4096 + 8192
    ledger.close()


def test_unknown_cells_are_taken_as_the_known_ones_are(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    ledger = Ledger(str(tmp_path))
    for cell in range(CELLS):
        ledger.add(cell, 100)
    said = ledger.said_of([7])[0]
    # 64 of 256 cells hold 1,000 bytes each, of which the records know 100.
    ledger.note_looks({cell: Held(1000, 1, said, said) for cell in range(64)})
    assert ledger.read().bytes == 256 * 1000 + 100
    ledger.close()


def test_what_came_while_a_cell_was_looked_at_counts_by_half(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.add(1, 300)
    ledger.note_looks({1: Held(1000, 1, 100, 300)})
    assert ledger.read().bytes == 1100
    ledger.close()


def test_all_processes_see_one_usage(tmp_path: Path) -> None:
    mine, other = Ledger(str(tmp_path)), Ledger(str(tmp_path))
    mine.add(0, 5000)
    other.add(255, 3000)
    other.count(evicted=2, stuck=1)
    for ledger in (mine, other):
        reading = ledger.read()
        assert reading[:1] + reading[2:5] == (8000, 2, 2, 1)
    mine.close()
    other.close()


def test_B96_what_the_dead_counted_is_not_lost(tmp_path: Path) -> None:
    code = f"""
import os
from unikv.backends.file_evict_ledger import Ledger
ledger = Ledger({str(tmp_path)!r})
ledger.add(9, 7000)
ledger.count(evicted=3)
os.kill(os.getpid(), 9)
"""
    ledger = Ledger(str(tmp_path))
    for turn in range(3):
        subprocess.run([sys.executable, "-c", code], check=False)
        assert ledger.read().bytes == 7000 * (turn + 1)
        assert ledger.fold() == 1
        assert records(tmp_path) == []
        assert ledger.read().bytes == 7000 * (turn + 1)
    assert ledger.read().evicted == 9
    assert ledger.fold() == 0


def test_a_record_that_is_taken_over_and_still_there_counts_once(tmp_path: Path) -> None:
    """As after a power loss between the two steps."""
    ledger, dead = Ledger(str(tmp_path)), Ledger(str(tmp_path))
    dead.add(9, 7000)
    dead.close()
    (path,) = records(tmp_path)
    data = path.read_bytes()
    assert ledger.fold() == 1
    path.write_bytes(data)
    assert ledger.read().bytes == 7000
    assert ledger.fold() == 1
    assert ledger.read().bytes == 7000
    assert records(tmp_path) == []


def test_records_that_are_taken_over_while_somebody_reads_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several, one after the other: the reader saw all of them, and finds the last table."""
    reader, other = Ledger(str(tmp_path)), Ledger(str(tmp_path))
    dead = [Ledger(str(tmp_path)) for _ in range(3)]
    for cell, ledger in enumerate(dead):
        ledger.add(cell, 1000)
        ledger.close()
    table = reader._table

    def take_over_first(folder: int) -> Table:
        other.fold()
        return table(folder)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "_table", take_over_first)
        assert reader.read().bytes == 3000
    assert records(tmp_path) == []
    assert reader.read().bytes == 3000


def test_a_live_record_is_not_taken_over(tmp_path: Path) -> None:
    ledger, alive = Ledger(str(tmp_path)), Ledger(str(tmp_path))
    alive.add(1, 100)
    assert ledger.fold() == 0
    alive.add(1, 100)
    assert ledger.read().bytes == 200
    alive.close()


def test_a_damaged_row_of_the_dead_makes_its_cell_unknown(tmp_path: Path) -> None:
    ledger, dead = Ledger(str(tmp_path)), Ledger(str(tmp_path))
    dead.add(9, 7000)
    dead.add(10, 500)
    dead.close()
    (path,) = records(tmp_path)
    data = bytearray(path.read_bytes())
    data[16 + 16 * (FIRST_CELL + 9)] ^= 1
    path.write_bytes(data)
    ledger.fold()
    table = ledger.table()
    assert table.known == CELLS - 1
    assert len(table.folded) == 1
    assert table.rows[9] == Row(500 // (FANNED - 1))  # as much as the others hold
    assert table.rows[10].bytes == 500


def test_damage_is_a_ledger_that_knows_nothing(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.add(1, 5000)
    for content in (b"", b"junk" * 2000, pack_table(Table())[:-1]):
        (tmp_path / USAGE / "table").write_bytes(content)
        assert ledger.read().bytes == 5000
        assert ledger.read().table == Table()
    (tmp_path / USAGE / "table").unlink()
    (tmp_path / USAGE / "table").symlink_to("/etc/passwd")
    assert ledger.read().table == Table()
    (tmp_path / USAGE / ("a" * 16)).write_bytes(b"junk" * 500)
    (tmp_path / USAGE / ("b" * 16)).mkdir()
    assert ledger.read().bytes == 5000
    ledger.close()


def test_a_folder_that_somebody_cleared_begins_anew(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.add(1, 5000)
    for path in (tmp_path / USAGE).iterdir():
        path.unlink()
    assert ledger.read().bytes == 0
    ledger.add(1, 4096)
    assert ledger.read().bytes == 4096
    assert ledger.read().table.known == 0
    ledger.close()


def test_forgetting_keeps_the_best_guess(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    all_known(ledger, 100)
    ledger.forget()
    assert ledger.read().table.known == 0
    assert ledger.read().bytes == 100 * CELLS


def test_the_lock_is_one_and_is_not_waited_for(tmp_path: Path) -> None:
    mine, other = Ledger(str(tmp_path)), Ledger(str(tmp_path))
    with mine.hold() as held, other.hold() as also:
        assert held
        assert not also
    with other.hold() as held:
        assert held


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / USAGE).symlink_to("elsewhere")
    with pytest.raises(StoreError, match=r"\.usage, want a folder that takes locks and is no link"):
        Ledger(str(tmp_path))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_counting_survives_a_disk_that_takes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put must not fail for it; the next look at the cell finds the bytes."""
    ledger = Ledger(str(tmp_path))

    def full(*_args: object, **_kwargs: object) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        ledger.add(1, 100)
        ledger.count(evicted=1)
    ledger.add(1, 50)
    assert ledger.read().bytes == 50
    ledger.close()
    (tmp_path / USAGE / f"{'a' * 16}.new").touch()  # of one that was killed
    ledger.fold()
    assert names(tmp_path) == ["lock", "table"]
