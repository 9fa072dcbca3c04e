"""A page that is saved again is kept as one that was just requested; one only asked for is not."""

import os
import time
from pathlib import Path

import pytest

from tests.client.world import World
from unikv import KVSpec, Topology
from unikv.backends.file import FileStore
from unikv.backends.file_evict_child import Child
from unikv.backends.file_names import path_of
from unikv.backends.memory import MemoryStore
from unikv.backends.tiered import tiered
from unikv.store import Store
from unikv.testing_faults import Plan, faulty

SPEC = KVSpec.mha(layers=2, kv_heads=2, head_dim=4, dtype="int32", page_tokens=4)
RANK = Topology().rank()
LONG_AGO = time.time() - 7200


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    monkeypatch.setattr(Child, "ensure", lambda _self: None)
    return FileStore(tmp_path, max_bytes=10**9)


def wrapped(store: FileStore, around: str) -> Store:
    """Return what a client uses: the store, or one that has it inside."""
    match around:
        case "faulty":
            return faulty(store, Plan([]))
        case "fast":
            return tiered(store, MemoryStore())
        case "slow":
            return tiered(MemoryStore(), store)
    return store


def requested(store: FileStore, world: World) -> list[bool]:
    """Tell of each page whether it counts as requested since long ago; then make all of it old."""
    found = []
    for page in world.pages:
        paths = [Path(os.fsdecode(path_of(store.root, e.key))) for e in store.list(page)]
        found.append(max(path.stat().st_mtime for path in paths) > LONG_AGO + 3600)
        for path in paths:
            os.utime(path, (LONG_AGO, LONG_AGO))
    return found


@pytest.mark.parametrize(
    ("io", "around"),  # a store in memory is one process's alone
    [("threads", each) for each in ("plain", "faulty", "fast", "slow")]
    + [("process", each) for each in ("plain", "faulty")],
)
def test_a_page_that_a_save_finds_is_requested(store: FileStore, io: str, around: str) -> None:
    used = wrapped(store, around)
    world = World(SPEC, pages_count=5)
    side = world.side(used, RANK, filled=True, io=io, deadline_s=20)
    with side.client:
        assert side.client.save(world.pages, side.slots).ok
        assert requested(store, world) == [True] * 5
        assert side.client.match(world.pages).pages == 5
        assert requested(store, world) == [False] * 5
        report = side.client.save(world.pages[1:3], side.slots[1:3])
        assert (report.stored, report.existed > 0) == (0, True)
        assert requested(store, world) == [False, True, True, False, False]
    used.close()


def test_a_page_that_went_meanwhile_is_no_error(store: FileStore) -> None:
    store.refresh(["none", "0" * 64, "../x", ""])
    assert list(store.list()) == []
    store.close()
