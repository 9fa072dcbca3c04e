"""Whatever a file system does wrong, FsspecStore gives right bytes, a miss or an error."""

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.backends.fake_file_systems import Quirky, install
from unikv.backends import fsspec as backend
from unikv.backends.fsspec import FsspecStore
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import UNKNOWN_SIZE, Item, Outcome, Outcomes, Span
from unikv.testing import read

OK, EXISTED, MISS, FAILED = Outcome

UNTRUSTED = "SSL validation failed for https://h certificate verify failed: expired"


@pytest.fixture
def fs() -> type[Quirky]:
    return install()


@pytest.fixture
def store(fs: type[Quirky]) -> Iterator[FsspecStore]:  # noqa: ARG001 - installs it
    store = open_store("fsspec+quirky://host/root?password=SECRET-word&publish=rename")
    assert isinstance(store, FsspecStore)
    yield store
    store.close()


@pytest.fixture
def whole(fs: type[Quirky]) -> Iterator[FsspecStore]:  # noqa: ARG001 - as above
    store = open_store("fsspec+quirky:///root?publish=whole")
    assert isinstance(store, FsspecStore)
    yield store
    store.close()


def raising(error: BaseException) -> Callable[..., Any]:
    def quirk(*_: object) -> None:
        raise error

    return quirk


def of_boto(status: int) -> OSError:
    """Return an error as s3fs makes it of one of boto3's."""
    error = OSError(errno.EIO, "An error occurred (Unknown)")
    error.__cause__ = RuntimeError()
    error.__cause__.response = {"ResponseMetadata": {"HTTPStatusCode": status}}  # type: ignore[attr-defined]
    return error


def files(fs: type[Quirky]) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in fs.store)


# Reading


@pytest.mark.parametrize("wrong", [b"", b"012", b"0123456789", b"01234"])
def test_bytes_that_are_too_few_or_too_many_fail(
    whole: FsspecStore, fs: type[Quirky], wrong: bytes
) -> None:
    whole.put([Item("key", [b"0123456789"])])
    fs.quirks["cat_file"] = lambda *_: wrong
    assert read(whole, "key", 2, 6) == FAILED


def test_an_error_beyond_the_end_is_a_short_object(whole: FsspecStore, fs: type[Quirky]) -> None:
    whole.put([Item("key", [b"0123"])])
    fs.quirks["cat_file"] = raising(OSError(errno.EINVAL, "Range not satisfiable"))
    outcomes = whole.get([Span("key", 4, 9, [memoryview(bytearray(5))])])
    assert "the object has 4 bytes" in str(outcomes.errors[0])
    outcomes = whole.get([Span("key", 0, 4, [memoryview(bytearray(4))])])
    assert "Range not satisfiable" in str(outcomes.errors[0])
    assert outcomes.errors[0].errno == errno.EINVAL


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (TimeoutError(), True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
        (OSError(errno.EBUSY, "slow down"), True),
        (type("EndpointConnectionError", (Exception,), {})("no route"), True),
        (type("ReadTimeoutError", (Exception,), {})("late"), True),
        (type("ClientResponseError", (Exception,), {"status": 503})("busy"), True),
        (type("ClientResponseError", (Exception,), {"status": 404})("none"), False),
        (type("HTTPClientConnectionError", (Exception,), {})(UNTRUSTED), False),
        (of_boto(500), True),
        (of_boto(400), False),
        (PermissionError(errno.EACCES, "no"), False),
        (ValueError("bad"), False),
    ],
)
def test_any_error_fails_its_item_and_says_whether_it_may_pass(
    whole: FsspecStore, fs: type[Quirky], *, error: Exception, passing: bool
) -> None:
    whole.put([Item("key", [b"0123"])])
    calls: dict[str, Callable[[], Outcomes]] = {
        "cat_file": lambda: whole.get([Span("key", 0, 2, [memoryview(bytearray(2))])]),
        "pipe_file": lambda: whole.put([Item("new", [b"x"])], replace=True),
        "info": lambda: whole.delete(["key"]),
    }
    for quirk, call in calls.items():
        fs.quirks.clear()
        fs.quirks[quirk] = raising(error)
        outcomes = call()
        assert list(outcomes.codes) == [FAILED]
        assert outcomes.errors[0].retryable is passing
        assert len(str(outcomes.errors[0])) > len("get 'key': ")
    fs.quirks.clear()
    fs.quirks["info"] = raising(error)
    for keys in (["key"], ["key", "other", "../x"]):
        with pytest.raises(StoreError, match="stat 'key'") as caught:
            whole.stat(keys)  # a file system that lets nobody in is not empty
        assert caught.value.retryable is passing
    assert whole.stat(["../x"]) == [None]


def test_no_error_shows_an_option(store: FsspecStore, fs: type[Quirky]) -> None:
    fs.quirks["mv"] = raising(OSError("login with SECRET-word failed"))
    outcomes = store.put([Item("key", [b"x"])])
    assert "login with *** failed" in str(outcomes.errors[0])
    assert outcomes.errors[0].__cause__ is None
    assert "SECRET" not in f"{store!r} {store.opener!r} {store._place!r}"


def test_a_size_that_is_not_told_is_unknown(whole: FsspecStore, fs: type[Quirky]) -> None:
    whole.put([Item("key", [b"0123"])])
    fs.quirks["info"] = lambda *_: {"type": "file", "size": None}
    assert whole.stat(["key"]) == [UNKNOWN_SIZE]
    assert read(whole, "key", 0, 4) == b"0123"
    assert read(whole, "key", 2, 6) == FAILED


# The root


def test_a_missing_root_is_no_miss(
    store: FsspecStore, fs: type[Quirky], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_LOOK_AGAIN_S", 0.0)
    assert read(store, "key", 0, 1) == MISS
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    outcomes = store.get([Span("key", 0, 1, [memoryview(bytearray(1))])])
    assert list(outcomes.codes) == [FAILED]
    assert "there is no '/host/root'" in str(outcomes.errors[0])
    with pytest.raises(StoreError, match="there is no '/host/root'"):
        store.stat(["key", "../x"])
    assert store.stat(["../x"]) == [None]
    assert list(store.delete(["key"]).codes) == [FAILED]
    assert list(store.put([Item("key", [b"x"])]).codes) == [OK]  # it makes what it needs
    assert read(store, "gone", 0, 1) == MISS
    assert store.stat(["gone", "key"]) == [None, 1]
    assert store.stat(["gone"]) == [None]


def test_a_listing_of_a_root_that_is_gone_is_not_empty(
    store: FsspecStore, fs: type[Quirky], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_LOOK_AGAIN_S", 0.0)
    assert list(store.list()) == []
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    with pytest.raises(StoreError, match="there is no '/host/root'"):
        list(store.list())


# Listing


@pytest.mark.parametrize("narrows", [False, True])
def test_the_mark_of_a_folder_is_no_object(
    fs: type[Quirky], monkeypatch: pytest.MonkeyPatch, *, narrows: bool
) -> None:
    """Consoles of object stores make a folder of an empty object whose name ends with a slash."""
    marks = [
        {"name": "/root/dir/", "size": 0, "type": "file"},
        {"name": "/root/", "size": 0, "type": "file"},
        {"name": "/root/other/", "size": 0, "type": "directory"},
        {"name": "/root/a//b", "size": 1, "type": "file"},
        {"name": "/root//c", "size": 1, "type": "file"},
    ]
    found = [*marks, {"name": "/root/key", "size": 4, "type": "file"}]

    def ls(*_: object, **__: object) -> list[dict[str, object]]:
        return found

    def find(_: Quirky, __: str, *, prefix: str, detail: bool) -> dict[str, dict[str, object]]:
        assert detail
        return {str(one["name"]): one for one in found if f"/root/{prefix}" in str(one["name"])}

    monkeypatch.setattr(fs, "find", find) if narrows else monkeypatch.setattr(fs, "ls", ls)
    store = open_store("fsspec+quirky:///root?publish=whole")
    assert [entry.key for entry in store.list()] == ["key"]
    assert list(store.list("d")) == []
    store.close()


# Silence


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        OSError(errno.ETIMEDOUT, "no answer"),
        type("ReadTimeoutError", (Exception,), {})("late"),
    ],
)
def test_who_does_not_answer_is_not_asked_again_in_a_call(
    whole: FsspecStore, fs: type[Quirky], error: Exception
) -> None:
    keys = [f"key{i}" for i in range(5)]
    calls: dict[str, Callable[[], Outcomes]] = {
        "cat_file": lambda: whole.get([Span(k, 0, 1, [memoryview(bytearray(1))]) for k in keys]),
        "pipe_file": lambda: whole.put([Item(k, [b"x"]) for k in keys], replace=True),
        "info": lambda: whole.delete(keys),
    }
    for quirk, call in calls.items():
        fs.calls.clear()
        fs.quirks.clear()
        fs.quirks[quirk] = raising(error)
        outcomes = call()
        assert list(outcomes.codes) == [FAILED] * 5
        assert all(
            outcomes.errors[i].retryable and keys[i] in str(outcomes.errors[i]) for i in (0, 4)
        )
        assert fs.calls.count(quirk) == 1
    fs.calls.clear()
    with pytest.raises(StoreError, match="stat 'key0'"):
        whole.stat(keys)
    assert fs.calls == ["info"]
    fs.quirks["info"] = raising(OSError(errno.EIO, "bad"))  # an answer, if not a good one
    assert len(whole.delete(keys).errors) == fs.calls.count("info") - 1 == 5


def test_those_asked_before_keep_their_outcomes(whole: FsspecStore, fs: type[Quirky]) -> None:
    whole.put([Item("first", [b"data"])])

    def quirk(_: Quirky, path: str, *__: object) -> None:
        if path.endswith("silent"):
            raise TimeoutError

    fs.quirks["cat_file"] = fs.quirks["info"] = quirk
    keys = ["first", "gone", "silent", "first"]
    spans = [Span(key, 0, 4, [memoryview(bytearray(4))]) for key in keys]
    assert list(whole.get(spans).codes) == [OK, MISS, FAILED, FAILED]
    assert bytes(spans[0].into[0]) == b"data"
    assert whole.stat(keys) == [4, None, None, None]


def test_a_rename_without_answer_takes_no_object_away(store: FsspecStore, fs: type[Quirky]) -> None:
    assert store.put([Item("key", [b"old"])]).ok
    fs.calls.clear()
    fs.quirks["mv"] = raising(TimeoutError())
    outcomes = store.put([Item("key", [b"newer"]), Item("other", [b"x"])])
    assert list(outcomes.codes) == [FAILED, FAILED]
    assert fs.calls.count("mv") == 1
    assert read(store, "key", 0, 3) == b"old"


# Publishing


def test_an_object_is_written_beside_its_place_and_renamed(
    store: FsspecStore, fs: type[Quirky]
) -> None:
    seen: list[list[str]] = []
    fs.quirks["mv"] = lambda *_: seen.append(files(fs))
    store.put([Item("key", [b"da", b"ta"])])
    ((name,), *_) = seen
    assert len(name) == 32
    assert "pipe_file" not in fs.calls


def test_a_server_that_renames_onto_nothing_only_is_served(
    store: FsspecStore, fs: type[Quirky]
) -> None:
    def mv(self: Quirky, _: str, path2: str) -> None:
        if self._strip_protocol(path2) in self.store:
            raise RuntimeError("550 file exists")

    fs.quirks["mv"] = mv
    assert store.put([Item("key", [b"old"])]).ok
    assert store.put([Item("key", [b"new"])], replace=True).ok
    assert read(store, "key", 0, 3) == b"new"
    assert files(fs) == ["key"]


def test_a_server_that_says_nothing_when_it_does_not_rename_is_served(
    store: FsspecStore, fs: type[Quirky]
) -> None:
    fs.quirks["mv"] = lambda self, _, path2: self._strip_protocol(path2) in self.store
    assert store.put([Item("key", [b"old"])]).ok
    assert store.put([Item("key", [b"newer"])]).ok
    assert read(store, "key", 0, 5) == b"newer"
    assert files(fs) == ["key"]


@pytest.mark.parametrize("quirk", [raising(OSError("no")), lambda *_: True], ids=["raises", "lies"])
def test_what_cannot_be_renamed_leaves_nothing(
    store: FsspecStore, fs: type[Quirky], quirk: Callable[..., Any]
) -> None:
    fs.quirks["mv"] = quirk
    assert list(store.put([Item("key", [b"data"])]).codes) == [FAILED]
    assert files(fs) == []
    assert read(store, "key", 0, 4) == MISS


def test_a_part_that_was_not_written_whole_is_not_renamed(
    store: FsspecStore, fs: type[Quirky]
) -> None:
    fs.quirks["info"] = lambda _, path: {"type": "file", "size": 3} if ".tmp" in path else None
    outcomes = store.put([Item("key", [b"data"])])
    assert "wrote 4 bytes, the file has 3" in str(outcomes.errors[0])
    assert "mv" not in fs.calls


def test_one_that_neither_renames_nor_publishes_whole_stores_nothing(
    fs: type[Quirky], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

    monkeypatch.setattr(Quirky, "mv", AbstractFileSystem.mv)
    store = open_store("fsspec+quirky:///root")
    outcomes = store.put([Item("key", [b"data"])])
    assert "say publish=whole" in str(outcomes.errors[0])
    assert files(fs) == []
    store.close()


# If-absent


def test_B102_who_loses_a_race_finds_the_other_object(whole: FsspecStore, fs: type[Quirky]) -> None:
    def race(self: Quirky, path: str, _: bytes, mode: str) -> None:
        if mode == "create":
            fs.quirks.clear()
            self.pipe_file(path, b"their")
            raise FileExistsError(path)

    fs.quirks["pipe_file"] = race
    assert list(whole.put([Item("key", [b"ours!"])]).codes) == [EXISTED]
    assert read(whole, "key", 0, 5) == b"their"
    whole.delete(["key"])
    fs.quirks["pipe_file"] = race
    assert list(whole.put([Item("key", [b"longer"])]).codes) == [OK]  # theirs cannot be it
    assert read(whole, "key", 0, 6) == b"longer"


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSYS, OK), (errno.EACCES, FAILED)])
def test_a_server_that_knows_no_conditions_is_asked_without(
    whole: FsspecStore, fs: type[Quirky], number: int, code: Outcome
) -> None:
    def refuse(_: Quirky, __: str, ___: bytes, mode: str) -> None:
        if mode == "create":
            raise OSError(number, "not implemented")

    fs.quirks["pipe_file"] = refuse
    assert list(whole.put([Item("key", [b"data"])]).codes) == [code]
