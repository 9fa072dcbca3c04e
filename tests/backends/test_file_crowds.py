"""Many spans at once: a file store opens root or folder once for them, and all stays as for one."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unikv.backends import linux
from unikv.backends.file import FileStore
from unikv.errors import KeyFormatError
from unikv.store import Item, Outcome, Span
from unikv.testing import content, page_key

OK, EXISTED, MISS, FAILED = Outcome
SIZE = 300

CROWDS = {
    "apart": [page_key(n) for n in range(12)],
    "together": [f"{page_key(n)}_H{head}" for n in range(2) for head in range(6)],
}


@pytest.fixture(params=["openat2", "step by step"])
def store(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> FileStore:
    if request.param == "step by step":  # as on a kernel before 5.6
        monkeypatch.setattr(linux, "_OPENAT2", 100_000)
    return FileStore(tmp_path / "root")


@pytest.fixture(params=CROWDS)
def keys(request: pytest.FixtureRequest, store: FileStore) -> list[str]:
    keys = CROWDS[request.param]
    assert store.put([Item(key, [content(key, SIZE)]) for key in keys]).ok
    return keys


def path_of(store: FileStore, key: str) -> Path:
    return Path(store.root, key[:2], key[2:4], key)


def spans_of(keys: list[str]) -> list[Span]:
    return [Span(key, 0, SIZE, (memoryview(bytearray(SIZE)),)) for key in keys]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_every_span_is_filled_and_no_descriptor_stays(store: FileStore, keys: list[str]) -> None:
    before, spans = descriptors(), spans_of(keys)
    assert store.get(spans).ok
    assert [bytes(span.into[0]) for span in spans] == [content(key, SIZE) for key in keys]
    assert descriptors() == before


PLANTS: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "/dev/zero": lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, 1 << 8 | 5),
    "short": lambda path: path.write_bytes(b"x"),
}


@pytest.mark.parametrize("at", [0, 7, 11])
@pytest.mark.parametrize("plant", PLANTS)
def test_one_that_is_no_object_fails_alone(
    store: FileStore, keys: list[str], plant: str, at: int
) -> None:
    path = path_of(store, keys[at])
    path.unlink()
    try:
        PLANTS[plant](path)
    except PermissionError:
        pytest.skip("only root makes devices")
    before, wanted = descriptors(), [OK] * len(keys)
    wanted[at] = FAILED
    assert list(store.get(spans_of(keys)).codes) == wanted
    assert descriptors() == before


@pytest.mark.parametrize("at", [0, 7, 11])
def test_one_that_is_not_there_and_one_of_no_key_fail_alone(
    store: FileStore, keys: list[str], at: int
) -> None:
    path_of(store, keys[at]).unlink()
    wanted = [OK] * len(keys)
    wanted[at] = MISS
    assert list(store.get(spans_of(keys)).codes) == wanted
    bad = f"{keys[at][:4]}/../{keys[at]}"  # same digits in front: the folder is open
    outcomes = store.get([*spans_of(keys[:at]), *spans_of([bad]), *spans_of(keys[at + 1 :])])
    wanted[at] = FAILED
    assert list(outcomes.codes) == wanted
    assert isinstance(outcomes.errors[at].__cause__, KeyFormatError)


def test_keys_of_other_folders_may_come_between(store: FileStore, keys: list[str]) -> None:
    others = ["ns_0", "_", f"{keys[0][:4]}"]  # none begins with a page's hash
    assert store.put([Item(key, [content(key, SIZE)]) for key in others]).ok
    for at in (1, 4, 12):
        mixed = [*keys[:at], *others, *keys[at:]]
        spans = spans_of(mixed)
        assert store.get(spans).ok
        assert [bytes(span.into[0]) for span in spans] == [content(key, SIZE) for key in mixed]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_no_link_on_the_way_is_followed(store: FileStore, keys: list[str], depth: int) -> None:
    linked = [Path(store.root), path_of(store, keys[0]).parents[1], path_of(store, keys[0]).parent]
    folder = linked[depth]
    moved = Path(store.root).parent / "moved"
    folder.rename(moved)
    folder.symlink_to(moved)
    for key, code in zip(keys, store.get(spans_of(keys)).codes, strict=True):
        assert code == (FAILED if path_of(store, key).is_relative_to(folder) else OK)


def test_no_root_is_a_miss(store: FileStore, keys: list[str]) -> None:
    Path(store.root).rename(Path(store.root).parent / "moved")
    assert list(store.get(spans_of(keys)).codes) == [MISS] * len(keys)


def test_spans_are_told_of_in_turn_as_they_are_filled(store: FileStore, keys: list[str]) -> None:
    path_of(store, keys[2]).unlink()
    path_of(store, keys[9]).write_bytes(b"short")
    spans, came = spans_of(keys), []

    def note(at: int) -> None:
        assert bytes(spans[at].into[0]) == content(keys[at], SIZE)
        assert at + 1 == len(spans) or not any(spans[at + 1].into[0])
        came.append(at)

    codes = store.get_in_turn(spans, note).codes
    assert came == [at for at, code in enumerate(codes) if code == OK]
    assert came == [0, 1, 3, 4, 5, 6, 7, 8, 10, 11]


def test_each_item_is_stored_before_the_next_is_asked_for(store: FileStore) -> None:
    keys = [*CROWDS["apart"], CROWDS["apart"][0]]

    def items() -> Iterator[Item]:
        for n, key in enumerate(keys):
            assert all(path_of(store, other).exists() for other in keys[:n])
            yield Item(key, [content(key, SIZE)])

    assert list(store.put_in_turn(items()).codes) == [OK] * 12 + [EXISTED]
    assert list(store.put_in_turn(iter(())).codes) == []
