"""What does not belong beneath a root is never followed, read, listed or taken for an object."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from unikv.backends import linux
from unikv.backends.file import FileStore
from unikv.errors import StoreError
from unikv.store import Item, Outcome
from unikv.testing import page_key, read

OK, EXISTED, MISS, FAILED = Outcome
KEY = page_key(0)
FIRST, SECOND = KEY[:2], KEY[2:4]


@pytest.fixture(params=["openat2", "step by step"])
def store(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> FileStore:
    if request.param == "step by step":  # as on a kernel before 5.6
        monkeypatch.setattr(linux, "_OPENAT2", 100_000)
    return FileStore(tmp_path / "root")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Provide a folder that holds everything one could be led to."""
    outside = tmp_path / "outside"
    for folder in (outside, outside / SECOND, outside / FIRST / SECOND):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / KEY).write_bytes(b"secret")
        (folder / "ns_0_0").write_bytes(b"secret")
    return outside


def snapshot(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_ino, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("warm", [False, True], ids=["at once", "after it was used"])
@pytest.mark.parametrize("link", [FIRST, f"{FIRST}/{SECOND}", "_"])
def test_a_folder_that_is_a_link_is_refused(
    store: FileStore,
    outside: Path,
    link: str,
    warm: bool,  # noqa: FBT001
) -> None:
    key = "ns_0_0" if link == "_" else KEY
    root = Path(store.root)
    if warm:
        store.put([Item(key, [b"mine!!"])])
        assert read(store, key, 0, 6) == b"mine!!"
        (root / link).rename(root.parent / "moved")
    (root / link).parent.mkdir(exist_ok=True)
    (root / link).symlink_to(outside)
    before = snapshot(outside)
    assert read(store, key, 0, 6) == FAILED
    assert store.stat([key]) == [None]
    assert list(store.list()) == []
    assert store.put([Item(key, [b"stolen"])]).codes == [FAILED]
    assert store.put([Item(key, [b"stolen"])], replace=True).codes == [FAILED]
    assert store.put([Item(key, [b"of another size"])]).codes == [FAILED]
    assert store.delete([key]).codes == [FAILED]
    assert snapshot(outside) == before


def plant(store: FileStore, make: Callable[[Path], object]) -> Path:
    path = Path(store.root, FIRST, SECOND, KEY)
    path.parent.mkdir(parents=True)
    make(path)
    return path


def test_an_object_that_is_a_link_is_not_followed_and_heals(
    store: FileStore, outside: Path
) -> None:
    path = plant(store, lambda path: path.symlink_to(outside / KEY))
    before = snapshot(outside)
    assert read(store, KEY, 0, 6) == FAILED
    assert read(store, KEY, 0, 0) == FAILED
    assert store.stat([KEY]) == [None]
    assert list(store.list()) == []
    assert store.put([Item(KEY, [b"object"])]).codes == [OK]
    assert snapshot(outside) == before
    assert not path.is_symlink()
    assert read(store, KEY, 0, 6) == b"object"


def test_deleting_a_link_leaves_what_it_leads_to(store: FileStore, outside: Path) -> None:
    plant(store, lambda path: path.symlink_to(outside / KEY))
    assert store.delete([KEY]).codes == [OK]
    assert (outside / KEY).read_bytes() == b"secret"


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, 1 << 8 | 5)],
    ids=["pipe", "folder", "/dev/zero"],
)
def test_what_is_no_regular_file_is_no_object(
    store: FileStore, make: Callable[[Path], object]
) -> None:
    try:
        plant(store, make)
    except PermissionError:
        pytest.skip("only root makes devices")
    assert read(store, KEY, 0, 1) == FAILED
    assert read(store, KEY, 0, 0) == FAILED
    assert store.stat([KEY]) == [None]
    assert list(store.list()) == []


def test_a_folder_in_an_objects_place_fails_the_put_and_leaves_no_file(store: FileStore) -> None:
    plant(store, os.mkdir)
    assert store.put([Item(KEY, [b"x"])]).codes == [FAILED]
    assert store.delete([KEY]).codes == [FAILED]
    assert not [path for path in Path(store.root).rglob("*") if path.name.isdecimal()]


def test_a_file_in_a_folders_place_is_a_miss(store: FileStore) -> None:
    Path(store.root, FIRST).write_bytes(b"")
    assert read(store, KEY, 0, 1) == MISS
    assert store.stat([KEY]) == [None]
    assert list(store.list()) == []
    assert store.delete([KEY]).codes == [MISS]
    assert store.put([Item(KEY, [b"x"])]).codes == [FAILED]


def test_foreign_names_are_not_listed(store: FileStore) -> None:
    store.put([Item(KEY, [b"x"]), Item("ns_0_0", [b"y"])])
    root = Path(store.root)
    other = "ff" if FIRST != "ff" else "00"
    (root / other / SECOND).mkdir(parents=True)
    for place in (
        KEY,
        f"{other}/{SECOND}/{KEY}",  # an object in another's folder
        f"{FIRST}/{KEY}",
        f"_/{KEY}",
        "_/.hidden",
        "_/ä",
        f"{FIRST}/{SECOND}/README.txt",
        f"{FIRST}/{SECOND}/{KEY}+",
    ):
        (root / place).write_bytes(b"foreign")
    assert sorted(entry.key for entry in store.list()) == sorted([KEY, "ns_0_0"])


def test_B98_temporary_files_elsewhere_are_refused_at_open(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / ".tmp").symlink_to(elsewhere)
    with pytest.raises(StoreError, match=r"\.tmp, want a folder"):
        FileStore(root)
    (root / ".tmp").unlink()
    (root / ".tmp").write_bytes(b"")
    with pytest.raises(StoreError, match=r"\.tmp, want a folder.*Not a directory"):
        FileStore(root)


def test_B98_temporary_files_on_another_file_system_are_refused_at_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstat = os.fstat

    def elsewhere(fd: int) -> os.stat_result:
        found = list(fstat(fd))
        found[2] += 1  # st_dev
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", elsewhere)
    with pytest.raises(StoreError, match=r"\.tmp.*is a mount"):
        FileStore(tmp_path / "root")
