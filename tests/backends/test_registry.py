"""`open_store` opens what a URL names, and what it refuses it explains."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from unikv import registry
from unikv.backends.file import FileStore
from unikv.backends.memory import MemoryStore
from unikv.errors import MissingExtraError, StoreError, UrlError
from unikv.registry import Scheme, open_store
from unikv.store import Item


def test_memory_is_a_new_store_each_time() -> None:
    first, second = open_store("memory://"), open_store("memory://")
    assert isinstance(first, MemoryStore)
    first.put([Item("key", [b"x"])])
    assert second.stat(["key"]) == [None]


def test_a_file_url_names_a_folder(tmp_path: Path) -> None:
    for durable in (True, False):
        store = open_store(f"file://{tmp_path}/my%20kv?durable={int(durable)}")
        assert isinstance(store, FileStore)
        assert repr(store) == f"FileStore('{tmp_path}/my kv', durable={durable})"
        store.put([Item("key", [b"x"])])
        store.close()
    assert (tmp_path / "my kv" / "_" / "key").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", ["no scheme", "memory://", "file:///var/kv"]),
        ("/var/kv", ["no scheme", "want file:///var/kv"]),
        ("var/kv", ["'var/kv' has no scheme"]),
        ("s4://bucket/x", ["unknown scheme 's4'", "memory://, file:///var/kv"]),
        ("s4://u:SECRET@b/x?k=SECRET", ["unknown scheme 's4'", "s4://***@b/x"]),
        ("file://var/kv", ["'file://var/kv'", "absolute path", "file:///var/kv", "hosts"]),
        ("file://", ["absolute path"]),
        ("file:///", ["absolute path"]),
        ("file://~/kv", ["absolute path"]),
        ("file://u:SECRET@host/kv", ["'file://***@host/kv'", "absolute path"]),
        ("file:///tmp/none?durible=1", ["unknown option 'durible'", "it takes", "durable, "]),
        ("file:///tmp/none?durable=SECRET", ["option durable", "want 1 or 0"]),
        ("file:///tmp/none?SECRET", ["option 1", "want name=value"]),
        ("redis://user:SECRET#x@host/0", ["redis://***", "write # as %23"]),
        ("redis://user:SECRET?x@host/0", ["redis://***", "%3F"]),
        ("file:///tmp/none?readonly=1", ["no such folder"]),
        ("file:///tmp/none?durable=1&durable=1", ["'durable' is given twice"]),
        ("memory://host", ["names a host"]),
        ("memory:///path", ["has a path"]),
        ("memory://?x=1", ["unknown option 'x'", "it takes none"]),
    ],
)
def test_a_wrong_url_gets_one_clear_error(url: str, words: list[str]) -> None:
    with pytest.raises((UrlError, StoreError)) as caught:
        open_store(url)
    assert [word for word in words if word not in str(caught.value)] == []
    assert "SECRET" not in str(caught.value)
    assert not Path("/tmp/none").exists()


def test_a_folder_that_cannot_be_is_refused_at_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file: want a folder"):
        open_store(f"file://{tmp_path}/file")


def test_a_missing_client_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named 'obstore' of {name}", name="obstore")

    monkeypatch.setitem(registry.SCHEMES, "s3", Scheme("unikv.backends.s3", "s3://b/p", "s3"))
    monkeypatch.setattr(registry, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"needs obstore.*pip install 'unikv\[s3\]'"):
        open_store("s3://key:SECRET@bucket/p")


def test_a_fault_of_ours_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.SCHEMES, "x", Scheme("unikv.backends.none", "x://", "x"))
    with pytest.raises(ModuleNotFoundError, match=r"unikv\.backends\.none") as caught:
        open_store("x://")
    assert not isinstance(caught.value, MissingExtraError)


PLUGIN = """
from unikv.backends.memory import MemoryStore
from unikv.errors import UrlError

class Theirs(MemoryStore):
    pass

def open_url(url):
    if "bad" in url.options:
        raise UrlError("option bad: want none")
    if "bug" in url.options:
        raise ZeroDivisionError(str(url.options))
    return object() if "none" in url.options else Theirs()

number = 7
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, package: str, *points: str) -> None:
    """Lay out an installed package with a module and entry points, and put it on the path."""
    folder.mkdir()
    (folder / f"{package}.py").write_text(PLUGIN)
    info = folder / f"{package}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("\n".join(["[unikv.backends]", *points, ""]))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, package, raising=False)


def test_another_package_brings_a_scheme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path / "a", "plugin_one", "theirs = plugin_one:open_url")
    store = open_store("theirs://host/x?y=1")
    assert type(store).__name__ == "Theirs"
    with pytest.raises(UrlError, match="option bad: want none"):  # its own errors come through
        open_store("theirs://?bad=1")
    for near in ("their", "theirss", "theirs+x", "theirs.x"):
        with pytest.raises(UrlError, match=r"unknown scheme.*theirs://"):
            open_store(f"{near}://host")


def test_no_package_takes_a_scheme_of_unikv(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    points = [f"{scheme} = plugin_two:open_url" for scheme in ("memory", "file", "fsspec+memory")]
    install(monkeypatch, tmp_path / "a", "plugin_two", *points)
    assert type(open_store("memory://")) is MemoryStore
    assert isinstance(open_store(f"file://{tmp_path}/kv"), FileStore)
    assert type(open_store("fsspec+memory:///x")).__name__ == "FsspecStore"


@pytest.mark.parametrize(
    ("value", "query", "words"),
    [
        ("no_such_module:open_url", "", ["cannot be imported", "ModuleNotFoundError"]),
        ("plugin_bad:no_such", "", ["cannot be imported", "AttributeError"]),
        ("plugin_bad:number", "", ["raised TypeError"]),
        ("plugin_bad:open_url", "?bug=SECRET", ["raised ZeroDivisionError"]),
        ("plugin_bad:open_url", "?none=1", ["opened a object, which has no put"]),
    ],
)
def test_a_broken_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, query: str, words: list[str]
) -> None:
    install(monkeypatch, tmp_path / "a", "plugin_bad", f"theirs = {value}")
    with pytest.raises(StoreError) as caught:
        open_store(f"theirs://u:SECRET@host{query}")
    for word in [*words, "theirs://", value, "plugin_bad 1.5"]:
        assert word in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_two_packages_with_one_scheme_are_both_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in ("plugin_b", "plugin_a"):
        install(monkeypatch, tmp_path / package, package, f"theirs = {package}:open_url")
    with pytest.raises(StoreError, match=r"plugin_a:open_url of plugin_a 1\.5; plugin_b:open_url"):
        open_store("theirs://")


def test_backends_are_imported_on_use() -> None:
    code = (
        "import sys, unikv.registry as r; heavy = {'numpy', 'torch', 'ctypes', 'pytest'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "r.open_store('memory://'); assert 'unikv.backends.file' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
