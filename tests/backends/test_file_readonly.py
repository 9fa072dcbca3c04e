"""A file store that is read-only reads all, changes nothing, and makes nothing beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from unikv.backends.file import FileStore
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Outcome, Span
from unikv.testing import page_key

KEY = page_key(0, "_H0")


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture(params=[0o700, 0o500], ids=["writable", "not writable"])
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder with one object, as a copy without `.tmp`; a mode that does not bind root."""
    root = tmp_path / "root"
    file = root / KEY[:2] / KEY[2:4] / KEY
    file.parent.mkdir(parents=True)
    file.write_bytes(b"bytes")
    root.chmod(request.param)
    yield root
    root.chmod(0o700)


def test_it_reads_and_leaves_no_name_behind(root: Path) -> None:
    before = names(root)
    store = FileStore(root, readonly=True)
    data = bytearray(5)
    assert store.get([Span(KEY, 0, 5, [memoryview(data)])]).ok
    assert data == b"bytes"
    assert store.stat([KEY, "none"]) == [5, None]
    assert [entry.key for entry in store.list()] == [KEY]
    store.close()
    assert names(root) == before
    with pytest.raises(StoreError, match="closed"):
        store.put([])


def test_every_item_that_would_change_something_fails(root: Path) -> None:
    before = names(root)
    store = FileStore(root, readonly=True)
    for outcomes in (
        store.put([Item(KEY, [b"other"]), Item("new", [b"x"])], replace=True),
        store.put([Item(KEY, [b"bytes"]), Item("new", [b"x"])]),
        store.delete([KEY, "none"]),
    ):
        assert list(outcomes.codes) == [Outcome.FAILED] * 2
        assert all("the store is read-only" in str(outcomes.errors[at]) for at in (0, 1))
        assert KEY in str(outcomes.errors[0])
    with pytest.raises(StoreError, match="the store is read-only"):
        store.sweep()
    store.close()
    assert names(root) == before
    assert (root / KEY[:2] / KEY[2:4] / KEY).read_bytes() == b"bytes"


def test_a_root_that_is_missing_is_an_error_and_stays_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        with pytest.raises(StoreError, match="no such folder"):
            FileStore(tmp_path / name, readonly=True)
    assert names(tmp_path) == ["file"]


def test_a_url_opens_it(root: Path) -> None:
    store = open_store(f"file://{root}?readonly=1")
    assert repr(store) == f"FileStore({str(root)!r}, durable=False, readonly=True)"
    assert not store.put([Item("new", [b"x"])]).ok
    writable = open_store(f"file://{root.parent}/other?readonly=0")
    assert writable.put([Item("new", [b"x"])]).ok
