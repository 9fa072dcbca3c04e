"""System calls: each does the same in its slower way, where the kernel or file system lacks it."""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from unikv.backends import linux


@pytest.fixture(params=["openat2", "step by step"])
def base(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bytes:
    if request.param == "step by step":
        monkeypatch.setattr(linux, "_OPENAT2", 100_000)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"data")
    (tmp_path / "a" / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "a" / "link").symlink_to("b")
    (tmp_path / "a" / "b" / "link").symlink_to("file")
    return os.fsencode(tmp_path)


@pytest.mark.parametrize(
    ("place", "how", "number"),
    [
        ("a/b/file", linux.READ, 0),
        ("a/b", linux.FOLDER, 0),
        ("a/b/file", linux.LOOK, 0),
        ("a/b/link", linux.LOOK, 0),  # the link itself
        ("a/b/link", linux.READ, errno.ELOOP),
        ("a/link/file", linux.READ, errno.ELOOP),
        ("link/b/file", linux.READ, errno.ELOOP),
        ("link/b/file", linux.LOOK, errno.ELOOP),
        ("a/link", linux.FOLDER, errno.ELOOP),
        ("a/b/none", linux.READ, errno.ENOENT),
        ("a/none/file", linux.READ, errno.ENOENT),
        ("a/file/file", linux.READ, errno.ENOTDIR),
        ("a/b/file", linux.FOLDER, errno.ENOTDIR),
    ],
)
def test_opening_follows_no_link(base: bytes, place: str, how: linux.How, number: int) -> None:
    path = b"%b/%b" % (base, place.encode())
    before = len(list(Path("/proc/self/fd").iterdir()))
    fd = linux.try_open(path, how)
    assert -min(fd, 0) == number
    if fd >= 0:
        assert not os.get_inheritable(fd)
        os.close(fd)
    else:
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            linux.open_path(path, how)
        assert caught.value.errno == number
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("place", "number"),
    [
        ("./b/file", 0),
        ("./link/file", errno.ELOOP),
        ("./b/link", errno.ELOOP),
        ("./c", errno.ENOENT),
    ],
)
def test_a_path_may_begin_at_an_open_folder(base: bytes, place: str, number: int) -> None:
    folder = linux.open_path(base + b"/a", linux.FOLDER)
    fd = linux.try_open(place.encode(), linux.READ, folder)
    os.close(folder)
    assert -min(fd, 0) == number
    if fd >= 0:
        assert os.read(fd, 10) == b"data"
        os.close(fd)


def test_a_name_in_an_open_folder_is_no_link(base: bytes) -> None:
    folder = linux.open_path(base + b"/a/b", linux.FOLDER)
    fd = linux.try_open_in(folder, "file", linux.READ)
    assert os.read(fd, 10) == b"data"
    assert not os.get_inheritable(fd)
    assert linux.try_open_in(folder, "link", linux.READ) == -errno.ELOOP
    assert linux.try_open_in(folder, "none", linux.READ) == -errno.ENOENT
    os.close(fd)
    os.close(folder)


def test_an_interrupted_open_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    syscall, calls = linux._syscall, iter([errno.EINTR, errno.EINTR, 0])

    def interrupted(*args: object) -> object:
        if number := next(calls):
            ctypes.set_errno(number)
            return -1
        return syscall(*args)

    monkeypatch.setattr(linux, "_syscall", interrupted)
    os.close(linux.open_path(os.fsencode(tmp_path / "file"), linux.READ))
    assert next(calls, None) is None


def refuse(number: int) -> Callable[..., int]:
    def call(*_args: object) -> int:
        ctypes.set_errno(number)
        return -1

    return call


@pytest.fixture(params=["renameat2", "EINVAL", "ENOSYS", "EPERM", "not in libc"])
def temp(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "not in libc":
        monkeypatch.setattr(linux, "_renameat2", None)
    elif request.param != "renameat2":
        monkeypatch.setattr(linux, "_renameat2", refuse(getattr(errno, request.param)))
    (tmp_path / "temp").write_bytes(b"new")
    return tmp_path / "temp"


def test_a_new_name_is_given_once(temp: Path) -> None:
    target = temp.with_name("target")
    linux.rename_new(os.fsencode(temp), os.fsencode(target))
    assert target.read_bytes() == b"new"
    assert not temp.exists()


def test_a_name_that_is_taken_stays(temp: Path) -> None:
    target = temp.with_name("target")
    target.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        linux.rename_new(os.fsencode(temp), os.fsencode(target))
    assert target.read_bytes() == b"old"
    assert temp.read_bytes() == b"new"


def test_a_folder_that_is_missing_is_told_apart(temp: Path) -> None:
    with pytest.raises(FileNotFoundError):
        linux.rename_new(os.fsencode(temp), os.fsencode(temp.parent / "none" / "target"))
    assert temp.exists()


def test_another_file_system_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "_renameat2", refuse(errno.EXDEV))
    (tmp_path / "temp").touch()
    with pytest.raises(OSError, match="cross-device"):
        linux.rename_new(os.fsencode(tmp_path / "temp"), os.fsencode(tmp_path / "target"))
