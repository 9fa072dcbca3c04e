"""The store form: what is counted, and from where namespaces are known."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.tools import stores
from tests.tools.stores import KEYED, MHA, NAMESPACES, PAGES, TAG_KEY, change, flip, write
from unikv import Namespace
from unikv.backends.file import FileStore
from unikv.backends.memory import MemoryStore
from unikv.hints import hint_key
from unikv.objects import ObjectFormat
from unikv.store import UNKNOWN_SIZE, Entry, Item, Outcomes, Span
from unikv.tools import roster
from unikv.tools.findings import NamespaceContent, StoreFindings
from unikv.tools.survey import survey


def only(found: StoreFindings) -> NamespaceContent:
    """Return the one namespace found."""
    (content,) = found.namespaces
    return content


def test_an_empty_store_holds_nothing_and_is_ok(store: MemoryStore) -> None:
    found = survey(store, "memory://")
    assert (found.objects, found.bytes, found.namespaces, found.unknown) == (0, 0, (), ())
    assert found.ok


@pytest.mark.parametrize("hint", [True, False], ids=["hinted", "unhinted"])
@pytest.mark.parametrize("namespace", NAMESPACES.values(), ids=NAMESPACES)
def test_every_kind_is_decoded_with_and_without_hint_records(
    store: MemoryStore, namespace: Namespace, *, hint: bool
) -> None:
    keys = write(store, namespace, hint=hint)
    content = only(survey(store, "memory://", verify=True))
    facts = content.namespace
    assert (facts.digest, facts.family) == (namespace.digest, namespace.family)
    assert (facts.spec, facts.rope) == (namespace.spec.describe(), namespace.rope)
    assert facts.announced is hint
    label = namespace.model if hint or namespace.weights == "unversioned" else ""
    assert facts.model == label
    assert content.objects == content.verified_objects == len(keys)
    assert content.bytes == len(PAGES) * facts.stored_bytes
    assert content.pages == content.complete_pages == len(PAGES)
    assert (content.incomplete_pages, content.damaged_objects) == (0, 0)


@pytest.mark.parametrize("hint", [True, False], ids=["hinted", "unhinted"])
def test_several_namespaces_in_one_store_are_told_apart(store: MemoryStore, *, hint: bool) -> None:
    counts = {ns.digest: len(write(store, ns, hint=hint)) for ns in NAMESPACES.values()}
    found = survey(store, "memory://")
    assert {c.namespace.digest: c.objects for c in found.namespaces} == counts
    assert found.objects == sum(counts.values())
    assert found.hint_records == (len(counts) if hint else 0)
    assert found.ok


def test_the_order_of_namespaces_does_not_depend_on_the_order_of_keys() -> None:
    orders = []
    for some in (list(NAMESPACES.values()), list(NAMESPACES.values())[::-1]):
        store = MemoryStore()
        for namespace in some:
            write(store, namespace)
        orders.append([c.namespace for c in survey(store, "memory://").namespaces])
    assert orders[0] == orders[1]


def test_a_hint_of_which_no_object_is_stored_shows_an_empty_namespace(store: MemoryStore) -> None:
    write(store, MHA, pages=[])
    assert only(survey(store, "memory://")).pages == 0


def test_pages_that_lack_chunks_are_counted_and_if_asked_named(store: MemoryStore) -> None:
    keys = write(store, MHA)
    store.delete([keys[1], keys[2], keys[5]])
    content = only(survey(store, "memory://"))
    assert (content.complete_pages, content.incomplete_pages, content.incomplete) == (2, 2, ())
    named = only(survey(store, "memory://", verbose=True)).incomplete
    assert {page.page: (page.missing, page.chunks) for page in named} == {
        PAGES[0]: (2, ("L3-4_H0", "L0-3_H1")),
        PAGES[1]: (1, ("L3-4_H0",)),
    }
    assert survey(store, "memory://").ok  # an evicted chunk is no damage


def test_objects_of_wrong_size_are_named_and_do_not_complete_a_page(store: MemoryStore) -> None:
    keys = write(store, MHA)
    change(store, keys[0], lambda data: data[:-1])
    change(store, keys[4], lambda data: data + b"\0")
    change(store, keys[9], lambda _: b"")
    found = survey(store, "memory://")
    content = only(found)
    assert {fault.key for fault in content.wrong_size} == {keys[0], keys[4], keys[9]}
    assert (content.wrong_size_objects, content.incomplete_pages) == (3, 3)
    assert not found.ok


@pytest.mark.parametrize(("at", "where"), [(20, "header"), (600, "slab 0"), (-1, "description")])
def test_B56_a_flipped_bit_is_found_by_verifying_and_not_before(
    store: MemoryStore, at: int, where: str
) -> None:
    keys = write(store, MHA)
    change(store, keys[7], flip(at))
    assert survey(store, "memory://").ok
    found = survey(store, "memory://", verify=True)
    content = only(found)
    assert [(fault.key, fault.where) for fault in content.damaged] == [(keys[7], where)]
    assert (content.damaged_objects, content.complete_pages) == (1, 3)
    assert not found.ok


def test_one_damaged_object_does_not_hide_a_namespace_without_hint(store: MemoryStore) -> None:
    keys = write(store, MHA, hint=False)
    for key in keys[:3]:
        change(store, key, flip(-20))
    content = only(survey(store, "memory://", verify=True))
    assert content.namespace.digest == MHA.digest
    assert (content.objects, content.damaged_objects) == (len(keys), 3)


def test_a_damaged_header_does_not_hide_a_namespace_without_hint(store: MemoryStore) -> None:
    for key in write(store, MHA, hint=False):
        change(store, key, lambda data: bytes(512) + data[512:])
    assert only(survey(store, "memory://")).namespace.digest == MHA.digest


def test_objects_that_nobody_can_explain_are_counted_with_the_reason(store: MemoryStore) -> None:
    keys = write(store, MHA, hint=False)
    for key in keys:
        change(store, key, lambda data: data[:-9])
    found = survey(store, "memory://")
    (unknown,) = found.unknown
    assert (unknown.digest, unknown.objects) == (MHA.digest, len(keys))
    assert "description" in unknown.reason
    assert found.ok
    assert not survey(store, "memory://", verify=True).ok  # asked to verify, and could not


def test_B89_foreign_files_are_counted_and_temporary_ones_not_shown(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    keys = write(store, MHA)
    (tmp_path / "_" / "notes.txt").write_bytes(b"mine")
    (tmp_path / ".tmp" / "0123456789abcdef").mkdir()
    (tmp_path / ".tmp" / "0123456789abcdef" / "1").write_bytes(b"half an object")
    page_folder = tmp_path / keys[0][:2] / keys[0][2:4]
    (page_folder / f"{keys[0]}_T0").write_bytes(b"no such chunk")
    (page_folder / "README").write_bytes(b"not listed")
    found = survey(store, "file://")
    assert set(found.foreign) == {f"{keys[0]}_T0", "notes.txt"}
    assert (found.foreign_keys, found.foreign_bytes) == (2, 17)
    assert only(found).objects == found.objects == len(keys)


@pytest.mark.parametrize(
    "key",
    [
        "note",
        "ns_note",
        PAGES[0],
        f"{PAGES[0].upper()}_{MHA.digest}_L0-3_H0",
        f"{'g' * 64}_{MHA.digest}_L0-3_H0",
        f"{PAGES[0]}_{MHA.digest}_L0-2_H0",
        f"{PAGES[0]}_{MHA.digest}_L00-3_H0",
        f"{PAGES[0]}_{MHA.digest}",
        f"{PAGES[0]}.{MHA.digest}_L0-3_H0",
        f"{PAGES[0]}_{MHA.digest}-L0-3_H0",
    ],
)
def test_keys_that_are_almost_ours_are_foreign(store: MemoryStore, key: str) -> None:
    write(store, MHA, PAGES[1:])
    store.put([Item(key, [b"1234"])])
    found = survey(store, "memory://")
    assert (found.foreign, found.foreign_bytes) == ((key,), 4)
    assert only(found).pages == 3


def test_a_damaged_hint_is_told_and_objects_still_tell_the_namespace(store: MemoryStore) -> None:
    write(store, MHA)
    hint = hint_key(MHA.family, 0)
    change(store, hint, flip(100))
    found = survey(store, "memory://")
    assert [fault.key for fault in found.damaged_hints] == [hint]
    assert only(found).namespace.announced is False
    assert not found.ok


def test_keyed_objects_are_not_verified_without_the_key(store: MemoryStore) -> None:
    keys = write(store, KEYED, tag_key=TAG_KEY)
    write(store, MHA)
    assert survey(store, "memory://").ok
    found = survey(store, "memory://", verify=True)
    by_digest = {content.namespace.digest: content for content in found.namespaces}
    assert by_digest[KEYED.digest].unverified_objects == len(keys)
    assert by_digest[KEYED.digest].complete_pages == len(PAGES)
    assert by_digest[MHA.digest].unverified_objects == 0
    assert not found.ok
    assert survey(store, "memory://", verify=True, tag_key=TAG_KEY).ok
    wrong = survey(store, "memory://", verify=True, tag_key=TAG_KEY[::-1])
    assert sum(content.damaged_objects for content in wrong.namespaces) == len(keys)


def test_grids_of_strangers_cannot_fill_the_memory(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "CHUNK_BUDGET", 5)
    write(store, MHA, hint=False)  # 4 chunks a page
    write(store, stores.MLA, hint=False)  # 6 more
    found = survey(store, "memory://")
    assert only(found).namespace.digest == MHA.digest
    (unknown,) = found.unknown
    assert (unknown.digest, unknown.objects) == (stores.MLA.digest, 24)
    assert "more than 5 chunks" in unknown.reason


def test_digests_of_strangers_cannot_fill_the_memory(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unikv.tools.survey.STRANGER_LIMIT", 2)
    store.put([Item(f"{PAGES[0]}_{i:032x}_L0-1", [b"x"]) for i in range(5)])
    found = survey(store, "memory://")
    assert [unknown.objects for unknown in found.unknown] == [1, 1, 3]
    assert found.unknown[2].digest == "others"


class Sizeless(MemoryStore):
    """A store in which asking for a size costs too much."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return (Entry(e.key, UNKNOWN_SIZE, None) for e in super().list(prefix))


def test_a_store_that_tells_no_sizes_can_be_surveyed_where_hints_are() -> None:
    store = Sizeless()
    write(store, MHA)
    found = survey(store, "memory://", verify=True)
    assert only(found).complete_pages == len(PAGES)
    assert (found.bytes, found.ok) == (0, True)


def test_a_store_that_tells_no_sizes_tells_no_namespace_without_hints() -> None:
    store = Sizeless()
    write(store, MHA, hint=False)
    (unknown,) = survey(store, "memory://").unknown
    assert "no size" in unknown.reason


class Vanishing(MemoryStore):
    """A store that loses all objects between listing and reading."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        self.delete([span.key for span in spans if span.key[:3] != "ns_"])
        return super().get(spans)


def test_objects_deleted_while_verifying_are_missing_and_not_damaged() -> None:
    store = Vanishing()
    write(store, MHA)
    found = survey(store, "memory://", verify=True)
    assert (only(found).complete_pages, only(found).damaged_objects) == (0, 0)
    assert found.ok


def test_progress_is_told_while_walking(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unikv.tools.survey._TICK_EVERY", 4)
    write(store, MHA)
    seen: list[tuple[int, int]] = []
    survey(store, "memory://", tick=lambda *so_far: seen.append(so_far))
    form = ObjectFormat.of(MHA)
    page_bytes = sum(form.object_bytes(chunk) for chunk in form.grid.chunks)
    assert seen == [(4 * page, page * page_bytes) for page in range(1, 5)]
