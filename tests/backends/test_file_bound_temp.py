"""Odd things in the folder of temporary files, and a link in its place, while a store is open."""

import errno
import gc
from pathlib import Path

import pytest

from unikv.backends.file import FileStore
from unikv.backends.linux import _OPENAT2
from unikv.store import Item, Outcome


@pytest.mark.parametrize("call", [_OPENAT2, 100_000], ids=["openat2", "step by step"])
@pytest.mark.parametrize("part", ["", "/hex"], ids=["the folder", "a writer's"])
def test_no_put_goes_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, call: int
) -> None:
    monkeypatch.setattr("unikv.backends.linux._OPENAT2", call)
    store = FileStore(tmp_path / "root")
    assert store.put([Item("first", [b"x"])]).ok
    place = tmp_path / "root" / ".tmp"
    if part:
        (place,) = (path for path in place.iterdir() if path.is_dir())
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    for replace in (False, True):
        outcomes = store.put([Item("second", [b"x"]), Item("third", [b"y"])], replace=replace)
        assert list(outcomes.codes) == [Outcome.FAILED] * 2
        assert outcomes.errors[0].errno == errno.ELOOP
    place.unlink()
    assert store.put([Item("second", [b"x"])]).ok  # made again
    store.close()


def test_a_link_that_comes_in_the_middle_of_a_batch_is_seen_by_the_next(tmp_path: Path) -> None:
    """Once for each object it would cost a twentieth of the smallest puts."""
    store = FileStore(tmp_path / "root")
    temporary, elsewhere = tmp_path / "root" / ".tmp", tmp_path / "elsewhere"

    def items() -> object:
        yield Item("first", [b"x"])
        temporary.rename(elsewhere)
        temporary.symlink_to(elsewhere)
        yield Item("second", [b"x"])

    outcomes = store.put_in_turn(items())  # type: ignore[arg-type]
    assert list(outcomes.codes) == [Outcome.OK] * 2
    assert list(store.put([Item("third", [b"x"])]).codes) == [Outcome.FAILED]
    store.close()


def test_odd_things_do_not_keep_a_sweep_from_the_rest(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    temporary = tmp_path / "root" / ".tmp"
    (temporary / ("0" * 16) / "foreign").mkdir(parents=True)
    (temporary / f"{'1' * 16}.lock").mkdir()
    (temporary / ("2" * 16)).write_bytes(b"foreign")
    (temporary / ("3" * 16)).symlink_to(tmp_path)
    (temporary / ("f" * 16)).mkdir()
    (temporary / ("f" * 16) / "0").write_bytes(b"half")
    with pytest.raises(OSError, match="Is a directory"):
        store.sweep()
    left = sorted(path.name[0] for path in temporary.iterdir())
    assert left == ["0", "1", "2", "3"]
    assert (temporary / ("0" * 16) / "foreign").is_dir()
    store.close()
    gc.collect()
