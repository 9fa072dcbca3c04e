"""The page form: every chunk of one page, in all namespaces."""

import pytest

from tests.tools.stores import KEYED, MHA, MLA, NAMESPACES, PAGES, TAG_KEY, change, flip, write
from unikv import Namespace
from unikv.backends.memory import MemoryStore
from unikv.errors import KeyFormatError, StoreError
from unikv.objects import ObjectFormat
from unikv.store import Item
from unikv.tools.one_page import inspect_page


@pytest.mark.parametrize("namespace", NAMESPACES.values(), ids=NAMESPACES)
def test_a_whole_page_shows_every_chunk_with_its_place(
    store: MemoryStore, namespace: Namespace
) -> None:
    write(store, namespace)
    found = inspect_page(store, "memory://", PAGES[2])
    (content,) = found.namespaces
    form = ObjectFormat.of(namespace)
    assert [
        (c.chunk, c.layers, c.heads, c.phase, c.state, c.size_bytes) for c in content.chunks
    ] == [
        (
            chunk.suffix,
            (chunk.layers.start, chunk.layers.stop),
            (chunk.heads.start, chunk.heads.stop),
            chunk.phase,
            "ok",
            form.object_bytes(chunk),
        )
        for chunk in form.grid.chunks
    ]
    assert (content.parents, content.page_indices) == ((PAGES[1],), (2,))
    assert found.ok


def test_the_first_page_has_no_parent(store: MemoryStore) -> None:
    write(store, MHA)
    (content,) = inspect_page(store, "memory://", PAGES[0]).namespaces
    assert (content.parents, content.page_indices) == ((), (0,))


def test_every_state_of_a_chunk_is_told(store: MemoryStore) -> None:
    keys = write(store, MHA)
    store.delete([keys[0]])
    change(store, keys[1], lambda data: data[:-1])
    change(store, keys[2], flip(700))
    found = inspect_page(store, "memory://", PAGES[0])
    (content,) = found.namespaces
    assert [chunk.state for chunk in content.chunks] == ["missing", "wrong_size", "damaged", "ok"]
    details = [chunk.detail for chunk in content.chunks]
    assert details[1].startswith("want ")
    assert details[2].startswith("slab 0: ")
    assert not found.ok


def test_a_missing_chunk_is_no_damage(store: MemoryStore) -> None:
    store.delete([write(store, MHA)[0]])
    assert inspect_page(store, "memory://", PAGES[0]).ok


def test_all_namespaces_of_a_page_are_shown(store: MemoryStore) -> None:
    for namespace in NAMESPACES.values():
        write(store, namespace, hint=namespace is not MLA)
    found = inspect_page(store, "memory://", PAGES[1])
    digests = {content.namespace.digest for content in found.namespaces}
    assert digests == {namespace.digest for namespace in NAMESPACES.values()}


def test_parent_and_index_of_a_damaged_header_are_not_believed(store: MemoryStore) -> None:
    keys = write(store, MHA)
    change(store, keys[4], flip(64))  # the parent hash
    change(store, keys[5], flip(96))  # the page index
    (content,) = inspect_page(store, "memory://", PAGES[1]).namespaces
    assert (content.parents, content.page_indices) == ((PAGES[0],), (1,))
    assert [chunk.state for chunk in content.chunks] == ["damaged", "damaged", "ok", "ok"]


def test_objects_that_disagree_on_the_parent_show_both(store: MemoryStore) -> None:
    form = ObjectFormat.of(MHA)
    for chunk, parent in zip(form.grid.chunks[:2], PAGES[1:], strict=False):
        payload = bytes(chunk.payload_bytes)
        header, description = form.encode(PAGES[0], chunk, payload, parent=parent)
        store.put([Item(form.key(PAGES[0], chunk), [header, payload, description])])
    (content,) = inspect_page(store, "memory://", PAGES[0]).namespaces
    assert (set(content.parents), content.page_indices) == (set(PAGES[1:3]), ())


def test_a_prefix_is_enough_where_no_other_page_begins_so(store: MemoryStore) -> None:
    write(store, MHA)
    assert inspect_page(store, "memory://", PAGES[3][:8]).page == PAGES[3]


def test_a_prefix_of_two_pages_is_refused_with_both(store: MemoryStore) -> None:
    twin = PAGES[0][:12] + "0" * 52
    write(store, MHA, [PAGES[0], twin])
    with pytest.raises(KeyFormatError, match="ambiguous") as caught:
        inspect_page(store, "memory://", PAGES[0][:12])
    assert PAGES[0] in str(caught.value)
    assert twin in str(caught.value)
    assert inspect_page(store, "memory://", twin).page == twin


def test_a_page_that_is_not_stored_is_an_error(store: MemoryStore) -> None:
    write(store, MHA)
    with pytest.raises(StoreError, match="no object of a page 0000000000"):
        inspect_page(store, "memory://", "0" * 64)


def test_keys_of_the_page_that_are_no_chunk_are_foreign(store: MemoryStore) -> None:
    write(store, MHA)
    strays = [f"{PAGES[0]}_{MHA.digest}_L0-4_H0", f"{PAGES[0]}.bak"]
    store.put([Item(key, [b"x"]) for key in strays])
    found = inspect_page(store, "memory://", PAGES[0])
    assert sorted(found.foreign) == sorted(strays)
    assert found.ok


def test_objects_of_an_unknown_namespace_are_told(store: MemoryStore) -> None:
    for key in write(store, MHA, hint=False):
        change(store, key, lambda data: data[:-9])
    found = inspect_page(store, "memory://", PAGES[0])
    assert found.namespaces == ()
    assert [(unknown.digest, unknown.objects) for unknown in found.unknown] == [(MHA.digest, 4)]


def test_keyed_chunks_are_verified_with_the_key_only(store: MemoryStore) -> None:
    write(store, KEYED, tag_key=TAG_KEY)
    (content,) = inspect_page(store, "memory://", PAGES[1]).namespaces
    assert [(c.state, c.detail) for c in content.chunks] == [
        ("unverified", "keyed: needs the key (--tag-key-file)")
    ]
    assert content.parents == (PAGES[0],)
    (content,) = inspect_page(store, "memory://", PAGES[1], TAG_KEY).namespaces
    assert [chunk.state for chunk in content.chunks] == ["ok"]
