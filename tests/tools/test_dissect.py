"""The object form: headers, slabs and tags of one object, whole or not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.stores import (
    KEYED,
    MHA,
    MLA,
    NAMESPACES,
    PAGES,
    TAG_KEY,
    change,
    flip,
    read,
    write,
)
from unikv import Namespace
from unikv.backends.memory import MemoryStore
from unikv.errors import StoreError
from unikv.tools import dissect as dissect_module
from unikv.tools.dissect import dissect
from unikv.tools.findings import ObjectFindings
from unikv.tools.lookup import inspect_store
from unikv.tools.reading import Source, object_file


def look(store: MemoryStore, key: str, tag_key: bytes | None = None) -> ObjectFindings:
    """Return what inspect finds of an object in a store."""
    found = inspect_store(store, "memory://", key, tag_key=tag_key)
    assert isinstance(found, ObjectFindings)
    return found


def look_alone(data: bytes, name: str = "copy.bin") -> ObjectFindings:
    """Return what inspect finds of an object that has nothing but its bytes and a name."""
    view = memoryview(data)
    return dissect(Source(name, len(data), lambda start, stop: view[start:stop]), name)


@pytest.mark.parametrize("namespace", NAMESPACES.values(), ids=NAMESPACES)
def test_a_whole_object_alone_tells_its_key_and_namespace(
    store: MemoryStore, namespace: Namespace
) -> None:
    keys = write(store, namespace)
    for key in (keys[0], keys[-1]):
        found = look_alone(read(store, key))
        assert found.key == key
        assert found.namespace
        assert found.namespace.digest == namespace.digest
        assert found.size_bytes == found.wanted_bytes
        assert {part.state for part in found.tagged} == {"ok"}
        assert found.ok


def test_the_header_is_decoded(store: MemoryStore) -> None:
    header = look(store, write(store, MHA)[6]).header
    assert header
    assert (header.version, header.codec, header.tags) == (1, "none", "xxh3_64")
    assert (header.page, header.parent, header.page_index) == (PAGES[1], PAGES[0], 1)
    assert (header.layers, header.group, header.phase) == ((0, 3), 1, None)
    assert (header.slabs, header.payload_bytes, header.header_bytes) == (3, 1152, 512)


def test_slabs_name_their_place_and_model_layer(store: MemoryStore) -> None:
    found = look(store, write(store, MLA)[3])  # second layer, second phase
    assert [(part.what, part.offset, part.size_bytes) for part in found.tagged] == [
        ("header", 0, 504),
        ("slab 0", 512, 320),
        ("payload", 512, 320),
        ("description", 832, found.size_bytes - 832 - 8),
    ]
    assert found.tagged[1].layer == 7
    assert found.header
    assert found.header.phase == 1


@pytest.mark.parametrize(
    ("at", "bad"),
    [
        (130, {"header", "payload"}),  # the payload's tag is in the header
        (512 + 384 + 5, {"slab 1", "payload"}),
        (512 + 3 * 384 - 1, {"slab 2", "payload"}),
        (-1, {"description"}),
        (-30, {"description"}),
    ],
)
def test_a_flipped_bit_shows_in_the_tags_that_cover_it(
    store: MemoryStore, at: int, bad: set[str]
) -> None:
    key = write(store, MHA)[0]
    change(store, key, flip(at))
    found = look(store, key)
    assert {part.what for part in found.tagged if part.state != "ok"} == bad
    assert not found.ok


def test_a_stored_tag_is_shown_and_what_it_should_be_is_not(store: MemoryStore) -> None:
    key = write(store, MHA)[0]
    right = look(store, key).tagged[1].tag
    change(store, key, flip(160))
    found = look(store, key)
    assert found.tagged[1].state == "bad"
    assert right not in str(found)


def test_a_truncated_object_tells_where_it_ends(store: MemoryStore) -> None:
    key = write(store, MHA)[0]
    data = read(store, key)
    found = look_alone(data[: 512 + 384 + 100])
    states = {part.what: part.state for part in found.tagged}
    assert states == {
        "header": "ok",
        "slab 0": "ok",
        "slab 1": "absent",
        "slab 2": "absent",
        "payload": "absent",
        "description": "absent",
    }
    assert found.namespace is None
    assert not found.ok


def test_a_store_knows_the_namespace_of_a_truncated_object(store: MemoryStore) -> None:
    key = write(store, MHA)[0]
    change(store, key, lambda data: data[:900])
    found = look(store, key)
    assert found.namespace
    assert found.wanted_bytes == 2170
    assert [fault.where for fault in found.faults] == ["size"]


def test_more_bytes_than_the_namespace_wants_are_not_read(store: MemoryStore) -> None:
    key = write(store, MHA)[0]
    data = read(store, key)
    asked: list[int] = []

    def reading(start: int, stop: int) -> memoryview:
        asked.append(stop - start)
        whole = data if stop <= len(data) else bytes(stop - start - len(data)) + data
        return memoryview(whole[:stop][start:] if stop <= len(data) else whole)

    found = dissect(Source("sparse", 1 << 40, reading), key)
    assert max(asked) <= dissect_module._HEADER_LIMIT
    assert [fault.where for fault in found.faults][:1] == ["size"]


def test_an_object_too_large_to_read_is_refused_with_one_line(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dissect_module, "OBJECT_LIMIT", 2000)
    key = write(store, MHA)[0]
    with pytest.raises(StoreError, match="2170 bytes, want at most 2000"):
        look(store, key)


def test_an_object_under_another_objects_key_names_the_difference(store: MemoryStore) -> None:
    keys = write(store, MHA)
    other = read(store, keys[4])
    change(store, keys[0], lambda _: other)
    found = look(store, keys[0])
    assert [fault.where for fault in found.faults] == ["header"]
    assert PAGES[1] in found.faults[0].detail
    assert PAGES[0] in found.faults[0].detail


def test_an_object_of_another_namespace_under_this_key_is_a_fault(store: MemoryStore) -> None:
    key = write(store, MHA)[0]
    other = read(store, write(store, MLA)[0])
    change(store, key, lambda _: other)
    assert not look(store, key).ok


@pytest.mark.parametrize("tag_key", [None, TAG_KEY], ids=["without-key", "with-key"])
def test_keyed_tags_need_the_key(store: MemoryStore, tag_key: bytes | None) -> None:
    key = write(store, KEYED, tag_key=TAG_KEY)[0]
    found = look(store, key, tag_key)
    assert {part.state for part in found.tagged} == ({"ok"} if tag_key else {"keyed"})
    assert found.ok
    change(store, key, flip(600))
    assert look(store, key, tag_key).ok is (tag_key is None)


def test_a_keyed_object_of_wrong_size_is_damaged_also_without_the_key(store: MemoryStore) -> None:
    key = write(store, KEYED, tag_key=TAG_KEY)[0]
    change(store, key, lambda data: data[:-1])
    assert not look(store, key).ok


def test_a_file_is_dissected_by_its_bytes_alone(store: MemoryStore, tmp_path: Path) -> None:
    key = write(store, MHA)[0]
    path = tmp_path / "found on a disk"
    path.write_bytes(read(store, key))
    found = dissect(object_file(path), path.name)
    assert (found.key, found.source, found.ok) == (key, str(path), True)
    assert found.namespace
    assert found.namespace.announced is None


def test_a_file_with_a_damaged_header_is_known_by_its_name_and_end(store: MemoryStore) -> None:
    key = write(store, MHA)[0]
    data = bytes(512) + read(store, key)[512:]
    found = look_alone(data, key)
    assert (found.key, found.header) == (key, None)
    assert found.namespace
    assert found.namespace.digest == MHA.digest
    assert [fault.where for fault in found.faults] == ["header"]
    nameless = look_alone(data)
    assert nameless.key == ""
    assert nameless.namespace
    assert not nameless.ok


def _bytes_of(kind: str) -> bytes:
    store = MemoryStore()
    return read(store, write(store, NAMESPACES[kind])[0])


@given(
    data=st.one_of(
        st.binary(max_size=700),
        st.builds(
            lambda kind, at, junk: _patched(_bytes_of(kind), at, junk),
            st.sampled_from(sorted(NAMESPACES)),
            st.integers(0, 2200),
            st.binary(max_size=64),
        ),
    ),
    end=st.integers(0, 2200),
)
def test_no_bytes_make_it_raise(data: bytes, end: int) -> None:
    for name in ("x", f"{PAGES[0]}_{MHA.digest}_L0-3_H0"):
        look_alone(data[:end], name)
        look_alone(data, name)


def _patched(data: bytes, at: int, junk: bytes) -> bytes:
    return data[:at] + junk + data[at + len(junk) :]


@pytest.mark.parametrize(
    "how",
    [lambda data: data[:100], lambda data: data[:512], lambda data: data[:-3], lambda _: b""],
    ids=["in-header", "header-only", "in-tag", "empty"],
)
def test_every_cut_is_a_fault(store: MemoryStore, how: Callable[[bytearray], object]) -> None:
    key = write(store, MHA)[0]
    change(store, key, how)
    found = look(store, key)
    assert found.faults[0].where == "size"
    assert not look_alone(read(store, key)).ok
