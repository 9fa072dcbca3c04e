"""Bytes of strangers: no key, size, hint or object makes inspect raise or fill the memory."""

import os
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.stores import MHA, NAMESPACES, PAGES, WEIGHTS, change, read, write
from unikv import KVSpec, Namespace
from unikv.backends.file import FileStore
from unikv.backends.memory import MemoryStore
from unikv.errors import StoreError, UnikvError
from unikv.hints import encode_hint, hint_key
from unikv.objects import ObjectFormat
from unikv.store import Item
from unikv.tools.cli import main
from unikv.tools.lookup import inspect, inspect_store
from unikv.tools.survey import survey

DIGESTS = st.sampled_from([MHA.digest, "0" * 32])
SUFFIXES = st.sampled_from(["L0-3_H0", "L3-4_H1", "L0-4", "L0-3_H0_T0", ""])
KEYS = st.one_of(
    st.builds("{}_{}_{}".format, st.sampled_from(PAGES), DIGESTS, SUFFIXES),
    st.builds(hint_key, st.sampled_from([MHA.family, "0" * 32]), st.integers(0, 16)),
    st.text("0123456789abcdef_LHT.", min_size=1, max_size=150).map(lambda text: f"a{text}"),
)


def _whole(kind: str) -> bytes:
    store = MemoryStore()
    return read(store, write(store, NAMESPACES[kind])[0])


WHOLE = [_whole(kind) for kind in sorted(NAMESPACES)]
HINTS = [encode_hint(namespace, 0) for namespace in NAMESPACES.values()]


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Return junk, or a real object or hint record with junk over some of it."""
    data = draw(st.one_of(st.binary(max_size=64), st.sampled_from([*WHOLE, *HINTS])))
    at, junk = draw(st.integers(0, 4096)), draw(st.binary(max_size=8))
    return (data[:at] + junk + data[at + len(junk) :])[: draw(st.sampled_from([5000, 600, 9]))]


@given(st.dictionaries(KEYS, contents(), max_size=8))
def test_no_store_makes_any_form_raise(objects: dict[str, bytes]) -> None:
    store = MemoryStore()
    store.put([Item(key, [data]) for key, data in objects.items()])
    found = survey(store, "memory://", verify=True, verbose=True)
    assert found.objects + found.foreign_keys + found.hint_records == len(objects)
    for key in objects:
        for target in (key, key[:64]):
            with suppress(UnikvError):  # no key, no such object, an ambiguous page
                inspect_store(store, "memory://", target)


def test_sparse_files_of_any_size_are_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = FileStore(tmp_path)
    key = write(store, MHA)[0]
    path = tmp_path / key[:2] / key[2:4] / key
    os.truncate(path, 1 << 40)
    alone = tmp_path / "alone.bin"
    alone.write_bytes(b"")
    os.truncate(alone, 1 << 40)
    tracemalloc.start()
    try:
        found = survey(store, "file://", verify=True)
        assert found.namespaces[0].wrong_size_objects == 1
        assert inspect_store(store, "file://", key).ok is False
        assert inspect_store(store, "file://", key[:64]).ok is False
        assert main(["inspect", str(alone)]) == 2
        assert "want at most" in capsys.readouterr().err
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_an_object_that_may_be_huge_by_its_namespace_is_not_read(tmp_path: Path) -> None:
    spec = KVSpec.rows(layers=3, row_bytes=1 << 29, rows_per_page=1, page_tokens=1)
    huge = Namespace(spec=spec, weights=WEIGHTS, rope="none")
    form = ObjectFormat.of(huge)
    (chunk,) = form.grid.chunks
    store = FileStore(tmp_path)
    store.put([Item(hint_key(huge.family, 0), [encode_hint(huge, 0)])])
    key = form.key(PAGES[0], chunk)
    store.put([Item(key, [b""])])
    os.truncate(tmp_path / key[:2] / key[2:4] / key, form.object_bytes(chunk))
    tracemalloc.start()
    try:
        (content,) = survey(store, "file://", verify=True).namespaces
        assert content.unverified_objects == 1
        assert inspect(f"file://{tmp_path}", PAGES[0]).ok
        with pytest.raises(StoreError, match="want at most"):
            inspect(f"file://{tmp_path}", key)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_link_under_a_key_is_not_followed(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "kv")
    key = write(store, MHA)[0]
    secret = tmp_path / "secret"
    secret.write_bytes(b"not ours")
    path = tmp_path / "kv" / key[:2] / key[2:4] / key
    path.unlink()
    path.symlink_to(secret)
    found = survey(store, "file://", verify=True)
    assert found.namespaces[0].objects == 15
    with pytest.raises(StoreError, match="holds no object"):
        inspect_store(store, "file://", key)


def test_a_hint_of_a_wrong_size_or_family_is_damaged(store: MemoryStore) -> None:
    write(store, MHA)
    change(store, hint_key(MHA.family, 0), lambda data: data + b"\0")
    store.put([Item(hint_key("0" * 32, 0), [encode_hint(MHA, 0)])])
    found = survey(store, "memory://")
    assert (found.hint_records, len(found.damaged_hints)) == (2, 2)
