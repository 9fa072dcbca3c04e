"""File URLs: every option that a store takes, and the URL that opens an equal one elsewhere."""

import json
import subprocess
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends.file import FileStore
from unikv.backends.file_url import Options, parse_options, url_of
from unikv.backends.url import parse_url
from unikv.errors import StoreError, UrlError
from unikv.registry import open_store
from unikv.store import Item

SIZES = st.none() | st.integers(1, 2**61)
OPTIONS = st.builds(Options, st.booleans(), st.booleans(), st.booleans(), SIZES, SIZES)
PATHS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1
).filter(lambda text: text.strip("/"))


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", Options()),
        ("durable=1&direct=1", Options(durable=True, direct=True)),
        ("readonly=true&durable=0", Options(readonly=True)),
        ("max_bytes=200GB", Options(max_bytes=200 * 10**9)),
        ("max_bytes=200GiB&min_free=10GB", Options(max_bytes=200 * 2**30, min_free=10**10)),
        ("min_free=4096", Options(min_free=4096)),
    ],
)
def test_a_query_means_its_options(query: str, options: Options) -> None:
    assert parse_options(parse_url(f"file:///var/kv?{query}")) == options


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///kv?max_bytes=lots", ["max_bytes", "'lots'", "want bytes, as 4096, 10GB (10^9)"]),
        ("file:///kv?max_bytes=0", ["max_bytes", "'0' is 0 bytes", "more than 0"]),
        ("file:///kv?min_free=-5", ["min_free", "'-5'"]),
        ("file:///kv?direct=yes", ["direct", "want 1 or 0"]),
        ("file:///kv?max_byte=5", ["unknown option 'max_byte'", "direct, durable, max_bytes"]),
        ("file://host/kv", ["absolute path"]),
        ("file:///", ["absolute path"]),
    ],
)
def test_a_wrong_option_is_named(url: str, words: list[str]) -> None:
    with pytest.raises(UrlError) as caught:
        open_store(url)
    assert [word for word in words if word not in str(caught.value)] == []


@given(PATHS, OPTIONS)
def test_a_url_comes_back(path: str, options: Options) -> None:
    url = parse_url(url_of(f"/{path}", options))
    assert url.scheme == "file"
    assert url.path == f"/{path}"
    assert parse_options(url) == options


@pytest.mark.parametrize("name", ["plain", "a b%20?&=#@+", "kv äß/ü", "ключ", "new\nline", "*~'\""])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"durable": True, "direct": True, "max_bytes": 12_345_678, "min_free": 1},
        {"readonly": True, "direct": True},
    ],
    ids=["no options", "many", "read-only"],
)
def test_an_opener_opens_an_equal_store(
    tmp_path: Path, name: str, options: dict[str, object]
) -> None:
    root = tmp_path / name
    root.mkdir(parents=True)
    with closing(FileStore(root, **options)) as store:  # type: ignore[arg-type]
        assert name not in repr(store.opener)
        opener = json.loads(json.dumps(store.opener))
        module, function, arguments = opener
        with closing(getattr(import_module(module), function)(*arguments)) as again:
            assert repr(again) == repr(store)
            assert again.opener == store.opener
            assert again.root == store.root
            assert again._options == store._options


def test_an_opener_opens_the_same_objects_in_another_process(tmp_path: Path) -> None:
    with closing(FileStore(tmp_path / "a b%?#", max_bytes=10**9)) as store:
        store.put([Item("key", [b"bytes"])])
        code = (
            "import json, sys, importlib\n"
            "module, function, arguments = json.loads(sys.argv[1])\n"
            "store = getattr(importlib.import_module(module), function)(*arguments)\n"
            "print(store.stat(['key']), store.usage().estimate)\n"
            "store.close()\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", code, json.dumps(store.opener)], capture_output=True, check=True
        )
        assert ran.stdout == b"[5] 4096\n"


def test_the_repr_shows_what_was_given(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert repr(FileStore(root)) == f"FileStore('{root}', durable=False)"
    with closing(FileStore(root, direct=True, max_bytes=5000, min_free=1)) as store:
        assert repr(store) == (
            f"FileStore('{root}', durable=False, direct=True, max_bytes=5000, min_free=1)"
        )


def test_a_bound_on_a_folder_that_takes_no_ledger_is_refused_at_open(tmp_path: Path) -> None:
    (tmp_path / ".usage").write_bytes(b"")
    with pytest.raises(StoreError, match=r"\.usage, want a folder that takes locks"):
        FileStore(tmp_path, max_bytes=10**9)
    FileStore(tmp_path).close()
