"""FileStore keeps the promises of a store, durable or not, and lays its files out as it says."""

import os
import stat
from pathlib import Path

import pytest

from unikv.backends import linux
from unikv.backends.file import FileStore
from unikv.errors import StoreError
from unikv.store import Item, Store
from unikv.testing import HOSTILE_KEYS, StoreContract, page_key


class TestFileStore(StoreContract):
    def open(self, folder: Path) -> Store:
        return FileStore(folder)

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002
        return FileStore(folder)


class TestDurableFileStore(StoreContract):
    def open(self, folder: Path) -> Store:
        return FileStore(folder, durable=True)

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002
        return FileStore(folder, durable=True)


class TestFileStoreOnAnOldKernel(StoreContract):
    """No openat2, no renameat2: the slower ways keep the same promises."""

    @pytest.fixture(autouse=True)
    def without_new_calls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(linux, "_OPENAT2", 100_000)
        monkeypatch.setattr(linux, "_renameat2", None)

    def open(self, folder: Path) -> Store:
        return FileStore(folder)

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002
        return FileStore(folder)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def test_files_lie_in_folders_named_by_the_page_hash(root: Path) -> None:
    key = page_key(0, "_H0")
    store = FileStore(root)
    store.put([Item(key, [b"x"]), Item("ns_0_0", [b"y"])])
    store.close()
    assert files(root) == sorted([f"{key[:2]}/{key[2:4]}/{key}", "_/ns_0_0"])


def test_files_and_folders_are_the_owners_alone(root: Path) -> None:
    store = FileStore(root)
    store.put([Item(page_key(0), [b"x"]), Item("ns_0_0", [b"y"])])
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    assert modes == {True: 0o700, False: 0o600}


def test_hostile_keys_leave_nothing_anywhere(root: Path) -> None:
    store = FileStore(root)
    store.put([Item(key, [b"x"]) for key in HOSTILE_KEYS])
    store.close()
    assert files(root.parent) == []


def test_names_of_files_stay_under_200_bytes(root: Path) -> None:
    store = FileStore(root)
    keys = ["k" * 160, page_key(0, "_" * 40)]
    assert store.put([Item(key, [b"x"]) for key in keys]).ok
    assert max(len(path.name.encode()) for path in root.rglob("*")) < 200


def test_a_store_is_found_again_after_it_was_closed(root: Path) -> None:
    store = FileStore(root)
    store.put([Item("key", [b"x"])])
    store.close()
    assert FileStore(root).stat(["key"]) == [1]


def test_a_root_may_be_reached_through_a_link(root: Path) -> None:
    root.mkdir()
    link = root.parent / "link"
    link.symlink_to(root)
    FileStore(link).put([Item("key", [b"x"])])
    assert FileStore(root).stat(["key"]) == [1]


def test_a_root_that_is_a_file_is_refused_at_open(root: Path) -> None:
    root.write_bytes(b"")
    with pytest.raises(StoreError, match=r"root'.*is a file: want a folder"):
        FileStore(root)
    with pytest.raises(StoreError, match="Not a directory"):
        FileStore(root / "below")


def test_a_root_that_is_not_writable_is_refused_at_open(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir(0o500)
    if os.geteuid() == 0:  # who may do anything is refused nothing
        monkeypatch.setattr(os, "access", lambda *_args: False)
    with pytest.raises(StoreError, match="not writable"):
        FileStore(root)


def test_a_root_with_nul_is_refused_at_open() -> None:
    with pytest.raises(StoreError, match="null"):
        FileStore("/tmp/a\0b")


def test_a_root_that_is_not_utf8_is_refused_at_open(root: Path) -> None:
    with pytest.raises(StoreError, match="open file store"):
        FileStore(f"{root}\udcff")


def test_the_repr_names_the_root(root: Path) -> None:
    assert repr(FileStore(root)) == f"FileStore('{root}', durable=False)"
