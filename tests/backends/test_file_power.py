"""Loss of power: what was not synced is short or zeroed; it is missed or caught, and heals.

A file system that lost power may show an object's name and size, and its bytes not: shortened,
zeros in the place of its last blocks, or in the place of all.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.client.world import World
from unikv import KVSpec, Topology
from unikv.backends.file import FileStore
from unikv.backends.file_cells import CELLS
from unikv.store import Item, Outcome
from unikv.testing import content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome
KEY = page_key(0)
BLOCK = 512


def shortened(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def zeroed_behind(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, size * 2 // 3 // BLOCK * BLOCK)
    os.truncate(path, size)


def zeroed(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


Harm = Callable[[Path], None]


@pytest.fixture(params=[{}, {"direct": True}, {"max_bytes": 10**9}], ids=str)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FileStore]:
    with closing(FileStore(tmp_path, **request.param)) as store:
        yield store


@pytest.mark.parametrize("harm", [shortened, emptied])
def test_a_short_object_is_of_another_size_and_is_replaced(store: FileStore, harm: Harm) -> None:
    data = content(KEY, 9000)
    store.put([Item(KEY, [data])])
    path = next(Path(store.root).rglob(KEY))
    harm(path)
    assert read(store, KEY, 0, 9000) == FAILED
    assert store.stat([KEY]) == [path.stat().st_size]
    assert store.stat([KEY]) != [9000]
    assert list(store.put([Item(KEY, [data])]).codes) == [OK]
    assert read(store, KEY, 0, 9000) == data


@pytest.fixture
def world() -> World:
    spec = KVSpec.mha(layers=4, kv_heads=2, head_dim=8, dtype="int32", page_tokens=8)
    return World(spec, pages_count=5, options={"layers_per_chunk": 2, "heads_per_chunk": 1})


@pytest.mark.parametrize("harm", [shortened, emptied, zeroed_behind, zeroed])
@pytest.mark.parametrize("page", [0, 3])
def test_a_client_misses_what_power_took_and_heals_it(
    store: FileStore, world: World, harm: Harm, page: int
) -> None:
    """The load ends before the first harmed page, the pool behind it stays, one save heals."""
    world.save(store, Topology())
    harmed = [path for path in Path(store.root).rglob(f"{world.pages[page]}*") if path.is_file()]
    assert len(harmed) == 4
    for path in harmed[:2]:
        harm(path)
    [(side, report)] = world.load(store, Topology())
    assert report.pages == page
    assert world.holds(side, page)
    assert world.pages[page] in str(report.stopped)
    healer = world.side(store, Topology().rank(), seed=5, filled=True)
    assert healer.client.load(world.pages, healer.slots).pages == page
    saved = healer.client.save(world.pages, healer.slots)
    assert (saved.stored, saved.existed, len(saved.failed)) == (2, 18, 0)
    [(side, report)] = world.load(store, Topology())
    assert report.pages == 5
    assert world.holds(side, 5)


def test_power_lost_while_all_was_written_costs_pages_and_no_byte(
    store: FileStore, world: World
) -> None:
    """Every object harmed, each in its way: nothing is loaded, and one save stores all anew."""
    world.save(store, Topology())
    paths = sorted(path for path in Path(store.root).rglob("*_L*") if path.is_file())
    assert len(paths) == 20
    for number, path in enumerate(paths):
        [shortened, emptied, zeroed_behind, zeroed][number % 4](path)
    [(side, report)] = world.load(store, Topology())
    assert report.pages == 0
    assert world.holds(side, 0)
    healer = world.side(store, Topology().rank(), seed=5, filled=True)
    stored = 0
    for _ in range(6):  # a load that ends at a page has not met what is behind it
        healer.client.load(world.pages, healer.slots)
        stored += healer.client.save(world.pages, healer.slots).stored
    assert stored == 20
    [(side, report)] = world.load(store, Topology())
    assert report.pages == 5
    assert world.holds(side, 5)


def test_a_ledger_that_lost_power_is_made_anew(tmp_path: Path) -> None:
    """Its table and records zeroed: usage is what the folders hold, once somebody looked."""
    with closing(FileStore(tmp_path, max_bytes=10**9)) as store:
        store.put([Item(page_key(i), [bytes(5000)]) for i in range(30)])
    for path in (tmp_path / ".usage").iterdir():
        zeroed(path)
    (tmp_path / ".usage" / ("0" * 16)).write_bytes(bytes(4180))
    with closing(FileStore(tmp_path, max_bytes=10**9)) as store:
        store.put([Item(page_key(100), [bytes(5000)])])
        assert store._bound
        ledger = store._bound.keeper().ledger
        until = time.monotonic() + 20
        while ledger.read().table.known < CELLS:
            assert time.monotonic() < until
            time.sleep(0.02)
        usage = store.usage()
        assert usage.estimate == usage.room == 31 * 8192
