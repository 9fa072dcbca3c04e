"""FsspecStore keeps the promises of a store on file systems that need no server."""

import errno
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backends.fake_file_systems import install
from unikv.backends.file import FileStore
from unikv.backends.fsspec import FsspecStore
from unikv.backends.fsspec_place import open_place, spell
from unikv.backends.url import StoreUrl, parse_url
from unikv.errors import MissingExtraError, StoreError, UrlError
from unikv.registry import open_store
from unikv.store import Item, Outcome, Store
from unikv.testing import StoreContract, page_key, read

OK, EXISTED, MISS, FAILED = Outcome


class TestMemoryFileSystem(StoreContract):
    def open(self, folder: Path) -> Store:  # noqa: ARG002 - it needs none
        return open_store(f"fsspec+memory:///{secrets.token_hex(8)}")

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002 - as above
        assert isinstance(store, FsspecStore)
        return FsspecStore(store._place)


class TestLocalFileSystem(StoreContract):
    def open(self, folder: Path) -> Store:
        return open_store(f"fsspec+file://{folder}")

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002 - as above
        return self.open(folder)


class OfThisProcess(FsspecStore):
    opener = None


class TestRenamingFileSystem(StoreContract):
    """One that is not local: not known to take two calls at once, nor to rename atomically."""

    def open(self, folder: Path) -> Store:  # noqa: ARG002 - as above
        install()
        return OfThisProcess(open_place(parse_url("fsspec+quirky:///root")))

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002 - as above
        return OfThisProcess(open_place(parse_url("fsspec+quirky:///root")))


# Beside a FileStore


def test_a_file_store_and_fsspec_share_a_folder(tmp_path: Path) -> None:
    ours, theirs = FileStore(tmp_path), open_store(f"fsspec+file://{tmp_path}")
    keys = [page_key(1), page_key(2, "_H1"), "ns_0_0", "other"]
    for writer, reader, some in ((ours, theirs, keys[::2]), (theirs, ours, keys[1::2])):
        assert writer.put([Item(key, [key.encode()]) for key in some]).ok
        assert [read(reader, key, 0, len(key)) for key in some] == [key.encode() for key in some]
    assert {e.key for e in ours.list()} == {e.key for e in theirs.list()} == set(keys)
    assert list(theirs.delete(keys).codes) == [OK] * 4
    assert list(ours.list()) == []
    ours.close()
    theirs.close()


def test_no_link_leads_out_of_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    store = open_store(f"fsspec+file://{tmp_path}/root")
    store.put([Item("there", [b"x"])])
    (tmp_path / "root" / "_" / "key").symlink_to(outside)
    page = page_key(0)
    (tmp_path / "root" / page[:2]).symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / page[2:4]).mkdir()
    (tmp_path / page[2:4] / page).write_bytes(b"secret")
    for key in ("key", page):
        assert store.stat([key]) == [None]
        assert read(store, key, 0, 6) == FAILED
        outcomes = store.put([Item(key, [b"public"])], replace=True)
        assert list(outcomes.codes) == [FAILED]
        assert "symbolic link" in str(outcomes.errors[0])
        assert list(store.delete([key]).codes) == [FAILED]
    assert outside.read_bytes() == b"secret"
    assert [entry.key for entry in store.list()] == ["there"]
    store.close()


def test_no_link_leads_out_of_a_flat_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    store = open_store(f"fsspec+file://{tmp_path}/root?publish=whole")
    store.put([Item("there", [b"x"])])
    (tmp_path / "root" / "key").symlink_to(outside)
    (tmp_path / "root" / "dangling").symlink_to(tmp_path / "made")
    for key in ("key", "dangling"):
        assert store.stat([key, "there"]) == [None, 1]
        assert read(store, key, 0, 6) == FAILED
        assert read(store, key, 0, 0) == FAILED
        for replace in (False, True):
            outcomes = store.put([Item(key, [b"public"])], replace=replace)
            assert list(outcomes.codes) == [FAILED]
            assert "symbolic link" in str(outcomes.errors[0])
        assert list(store.delete([key]).codes) == [FAILED]
        assert (tmp_path / "root" / key).is_symlink()
    assert outside.read_bytes() == b"secret"
    assert not (tmp_path / "made").exists()
    assert [entry.key for entry in store.list()] == ["there"]
    store.close()


@pytest.mark.parametrize("publish", ["whole", "rename"])
def test_no_folder_that_became_a_link_is_used(tmp_path: Path, publish: str) -> None:
    """Neither the root, nor a folder beneath it, nor that of temporary files."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    store = open_store(f"fsspec+file://{root}?publish={publish}")
    names = [".tmp-fsspec", "_", ""] if publish == "rename" else [""]
    for name in names:
        if (root / name).is_dir():
            (root / name).rename(tmp_path / f"old{name}")
        (root / name).symlink_to(outside, target_is_directory=True)
        for key in ("key", ".old", "_"):
            (outside / key).mkdir() if key == "_" else (outside / key).write_bytes(b"secret")
            os.utime(outside / key, (1e9, 1e9))
        (outside / "_" / "key").write_bytes(b"secret")
        assert isinstance(store, FsspecStore)
        assert store.sweep() == 0
        if name == ".tmp-fsspec":
            assert store.stat(["key"]) == [None]
            assert list(store.list()) == []
        else:
            assert read(store, "key", 0, 6) == FAILED
        assert list(store.put([Item("key", [b"public"])]).codes) == [FAILED]
        if name == "":
            with pytest.raises(StoreError, match="symbolic link"):
                list(store.list())
        else:
            assert list(store.list()) == []
        assert {one.name for one in outside.iterdir()} == {"key", ".old", "_"}
        assert (outside / "key").read_bytes() == (outside / "_" / "key").read_bytes() == b"secret"
        (root / name).unlink()
        shutil.rmtree(outside)
        outside.mkdir()
    store.close()


def test_B98_temporary_files_lie_on_the_same_file_system(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ".tmp-fsspec").symlink_to("/dev/shm", target_is_directory=True)
    with pytest.raises(StoreError, match=r"\.tmp-fsspec beneath it must be a folder of the same"):
        open_store(f"fsspec+file://{tmp_path}/root")


def test_what_a_killed_writer_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    store = open_store(f"fsspec+file://{tmp_path}")
    assert isinstance(store, FsspecStore)
    left = [tmp_path / ".tmp-fsspec" / name for name in ("old", "new")]
    for path in left:
        path.write_bytes(b"half an obj")
    os.utime(left[0], (1e9, 1e9))
    assert list(store.list()) == []
    assert store.sweep() == 1
    assert [path.exists() for path in left] == [False, True]
    store.close()


# URLs


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("fsspec+nothing://x", ["fsspec knows no 'nothing'", "memory"]),
        ("fsspec+file://var/kv", ["absolute path"]),
        ("fsspec+file:///", ["absolute path"]),
        ("fsspec+simplecache://x", ["would hide what others change"]),
        ("fsspec+memory:///x?asynchronous=1", ["option asynchronous is unikv's"]),
        ("fsspec+memory:///x?anon:=maybe", ["option 'anon'", "want JSON behind :="]),
        ("fsspec+memory:///x?publish=slowly", ["want whole or rename"]),
        ("fsspec+memory:///x?timeout=0", ["option timeout"]),
        ("fsspec+memory:///x?threads=none", ["option threads"]),
    ],
)
def test_a_wrong_url_is_explained(url: str, words: list[str]) -> None:
    with pytest.raises(UrlError) as caught:
        open_store(url)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_missing_package_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"fsspec\+gdrive://.*gdrive"):
        open_store("fsspec+gdrive://folder")


def test_without_fsspec_its_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['fsspec'] = None\n"
        "from unikv.registry import open_store\n"
        "open_store('fsspec+memory:///x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'unikv[fsspec]'" in done.stderr


TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="/"))


@given(
    path=TEXT.map(lambda text: f"/{text}".replace("\xad", "-")),
    options=st.dictionaries(TEXT.filter(bool), TEXT, max_size=3),
)
def test_a_url_is_spelled_as_it_was_read(path: str, options: dict[str, str]) -> None:
    url = StoreUrl("fsspec+s3", "user:p%40ss@bucket", path, options)
    assert parse_url(spell(url)) == url


def test_a_forked_child_is_told_to_open_anew(tmp_path: Path) -> None:
    store = open_store(f"fsspec+file://{tmp_path}")
    assert isinstance(store, FsspecStore)
    store._pid -= 1
    with pytest.raises(StoreError, match="fork of it: open it anew"):
        store.stat(["key"])
    store._pid += 1
    store.close()


def test_B46_no_object_is_copied_into_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What fsspec does where a rename fails is a copy in everybody's view; here it is an error."""
    store = open_store(f"fsspec+file://{tmp_path}")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(shutil, "move", refuse)
    monkeypatch.setattr(shutil, "copy2", refuse)
    assert store.put([Item("key", [b"data"])]).ok
    monkeypatch.setattr(Path, "replace", refuse)
    outcomes = store.put([Item("other", [b"data"])])
    assert "another device" in str(outcomes.errors[0])
    assert [entry.key for entry in store.list()] == ["key"]
    assert list((tmp_path / ".tmp-fsspec").iterdir()) == []
    store.close()
