"""The cost of a key does not grow with the number of keys, and no folder grows large."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from unikv.backends import linux
from unikv.backends.file import FileStore
from unikv.store import Item
from unikv.testing import page_key, read


def test_B95_a_key_is_looked_up_without_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    keys = [page_key(i) for i in range(50)]
    store.put([Item(key, [b"x"]) for key in keys])

    def fail(*_args: object) -> None:
        raise AssertionError("a folder was listed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fail)
        patch.setattr(os, "listdir", fail)
        assert store.stat(keys) == [1] * 50
        assert all(read(store, key, 0, 1) == b"x" for key in keys)
        assert store.put([Item(key, [b"yy"]) for key in keys]).ok
        assert store.delete(keys).ok


def test_chunks_of_a_page_open_its_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    keys = [f"{page_key(page)}_H{head}" for page in range(3) for head in range(8)]
    store.put([Item(key, [b"x"]) for key in keys])
    opened: list[bytes] = []

    def note(path: bytes, how: linux.How) -> int:
        opened.append(path)
        return linux.try_open(path, how)

    monkeypatch.setattr("unikv.backends.file_folders.try_open", note)
    assert store.stat(keys) == [1] * 24
    assert len(opened) == 3


@pytest.mark.slow
def test_B95_time_per_key_is_flat_up_to_100000_objects(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    keys = [page_key(i) for i in range(100_000)]
    asked = keys[:1000:10]

    def seconds() -> float:
        best = 1.0
        for _ in range(20):
            began = time.perf_counter()
            assert store.stat(asked) == [1] * 100
            best = min(best, time.perf_counter() - began)
        return best

    assert store.put([Item(key, [b"x"]) for key in keys[:1000]]).ok
    few = seconds()
    assert store.put([Item(key, [b"x"]) for key in keys[1000:]]).ok
    assert seconds() < 2 * few
    folders = Counter(
        str(Path(folder, name).parent)
        for folder, folders, files in os.walk(tmp_path)
        for name in folders + files
    )
    assert max(folders.values()) <= 258  # 256 folders, _ and .tmp
