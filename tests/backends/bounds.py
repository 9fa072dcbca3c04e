"""Bounds: what tests of bounded stores do to objects beneath a root, and how they evict."""

import os
import time
from pathlib import Path

from unikv.backends.file import FileStore
from unikv.backends.file_cells import CELLS
from unikv.backends.file_evict_loop import Loop
from unikv.backends.file_limits import Limits
from unikv.backends.file_names import folder_of
from unikv.store import Item, Outcome, Store
from unikv.testing import content, page_key

BLOCK = 4096
KEYS = [page_key(i) for i in range(40)]


def put(store: FileStore, *keys: str, blocks: int = 1) -> list[Outcome]:
    return list(store.put([Item(key, [content(key, blocks * BLOCK)]) for key in keys]).codes)


def path_of(store: FileStore, key: str) -> Path:
    return Path(store.root, folder_of(key), key)


def make_old(store: FileStore, key: str, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(path_of(store, key), (when, when))


def evict(root: Path, **limits: int) -> Loop:
    """Work as the process that evicts does, until there is nothing more to do."""
    loop = Loop(str(root), Limits(**limits))
    for _ in range(1000):
        known = loop._ledger.table().known
        if loop.turn() and known == CELLS:
            return loop
    raise AssertionError("it evicts for ever")


def there(store: Store) -> set[str]:
    return {entry.key for entry in store.list()}
