"""Arguments of a file store of wrong types, and a Python that knows of no interpreter to start."""

import json
import os
import sys
from contextlib import closing
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unikv.backends.file import FileStore
from unikv.errors import SpecError, StoreError, UrlError
from unikv.interpreter import find_interpreter, search_path
from unikv.registry import open_store
from unikv.store import Item, Outcome


@pytest.mark.parametrize("name", ["durable", "readonly", "direct"])
@pytest.mark.parametrize("value", [None, "no", "1", 0, 1, 5, 1.5, [], np.True_])
def test_a_switch_is_true_or_false(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"{name}=.*want True or False"):
        FileStore(tmp_path / "root", **{name: value})
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["max_bytes", "min_free"])
@pytest.mark.parametrize("value", ["10GB", "5", b"5", [], 1.5, 1e9, float("nan"), True, object()])
def test_a_bound_is_a_whole_number(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"{name}=.*want a whole number of bytes"):
        FileStore(tmp_path / "root", **{name: value})
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["max_bytes", "min_free"])
@pytest.mark.parametrize("value", [0, -1, 2**62 + 1, 2**63, 2**70, np.int64(-5)])
def test_a_bound_is_one_that_a_url_can_say(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(StoreError, match=rf"{name} is -?\d+: want bytes, more than 0 and at most"):
        FileStore(tmp_path / "root", **{name: value})
    with closing(FileStore(tmp_path, **{name: 2**62})) as store:  # type: ignore[arg-type]
        open_store(*store.opener.arguments).close()  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int32])
def test_bounds_of_numpy_are_bounds(tmp_path: Path, kind: Any) -> None:
    with closing(FileStore(tmp_path, max_bytes=kind(10**9), min_free=kind(1))) as store:
        assert store.put([Item("key", [b"bytes"])]).codes == [Outcome.OK]
        assert store.usage().fault is None
        json.dumps(store.opener)
        with closing(open_store(*store.opener.arguments)) as again:  # type: ignore[arg-type]
            assert repr(again) == repr(store)
            assert "max_bytes=1000000000, min_free=1" in repr(store)


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"/tmp"


@pytest.mark.parametrize("root", [None, 5, b"/tmp/x", [], object(), True, BytesPath()])
def test_a_root_is_a_text_or_a_path(root: Any) -> None:
    with pytest.raises(SpecError, match=r"root of type .*: want the path of a folder"):
        FileStore(root)


def test_no_root_is_not_the_folder_where_this_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"root '' .*want the path of a folder"):
        FileStore("")
    assert list(tmp_path.iterdir()) == []
    with closing(FileStore(".")) as store:
        assert store.root == str(tmp_path)


@pytest.mark.parametrize("url", [None, 5, b"file://user:secret@x", [], BytesPath(), object()])
def test_a_url_is_a_text(url: Any) -> None:
    with pytest.raises(UrlError, match=r"store URL of type .*: want a text, such as") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_path_for_a_url_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("a b%?#"), tmp_path / "a b%?#"):
        with pytest.raises(UrlError, match="store URL of type PosixPath: want a text") as caught:
            open_store(path)  # type: ignore[arg-type]
        with closing(open_store(str(caught.value).split("'")[1])) as store:
            assert repr(store).startswith(f"FileStore({str(tmp_path / 'a b%?#')!r}")


def no_interpreter(patch: pytest.MonkeyPatch, how: str) -> None:
    """Make this a Python that has no interpreter to start, as where a program embeds it."""
    python = {"none": None, "empty": b"", "gone": b"/nonexistent/python"}.get(how)
    if how == "frozen":
        python = os.fsencode(sys.executable)
        patch.setattr(sys, "frozen", True, raising=False)
    patch.setattr(spawn, "_python_exe", python)


HOW = {
    "none": "this process knows no Python interpreter",
    "empty": "this process knows no Python interpreter",
    "gone": "the Python interpreter '/nonexistent/python' cannot be run",
    "frozen": "is a frozen program",
}


@pytest.mark.parametrize("how", HOW)
def test_a_bound_holds_where_no_process_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    no_interpreter(monkeypatch, how)
    with closing(FileStore(tmp_path, max_bytes=10**6)) as store:
        for number in range(300):
            outcomes = store.put([Item(f"key{number}", [bytes(8000)])])
            assert outcomes.codes == [Outcome.OK], outcomes.errors
        usage = store.usage()
        assert 0 < usage.room <= 10**6
        assert usage.fault is not None
        assert HOW[how] in usage.fault
        assert "want multiprocessing.set_executable(path)" in usage.fault


def test_a_frozen_program_may_tell_of_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(SpecError, match="frozen"):
        find_interpreter()
    python = sys.executable
    monkeypatch.setattr(sys, "executable", "/usr/bin/program")
    assert find_interpreter() == python
    monkeypatch.setattr(sys, "executable", None)
    assert find_interpreter() == python


def test_an_interpreter_on_the_path_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(spawn, "_python_exe", b"python")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_interpreter() == str(tmp_path / "python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spawn, "_python_exe", b"./python")
    assert find_interpreter() == str(tmp_path / "python")


def test_places_for_modules_that_are_no_text_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, b"/x", None, tmp_path, ""])
    assert search_path()[-1] == str(Path.cwd())
    with closing(FileStore(tmp_path, max_bytes=10**9)) as store:
        assert store.put([Item("key", [b"bytes"])]).ok
        assert store.usage().fault is None
