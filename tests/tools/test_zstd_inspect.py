"""Objects of codec zstd under inspection: of many sizes, verified by tags and by unpacking."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.test_damage import keys_of, read, write
from tests.client.world import World
from tests.tools.stores import change
from unikv import KVSpec, Topology
from unikv.backends.memory import MemoryStore
from unikv.header import parse_header
from unikv.objects import ObjectFormat
from unikv.seal import cuts_of
from unikv.store import UNKNOWN_SIZE, Entry
from unikv.tools.lookup import inspect, inspect_store
from unikv.tools.one_page import inspect_page
from unikv.tools.survey import survey
from unikv.tools.wording import namespace_lines

SPEC = KVSpec.mha(layers=4, kv_heads=2, head_dim=4, dtype="int32", page_tokens=4)
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("zstd-v1-*.bin"))


@pytest.fixture
def world() -> World:
    options = {"layer_cuts": (0, 2, 4), "heads_per_chunk": 1, "codec": "zstd"}
    return World(SPEC, pages_count=3, options=options)


@pytest.fixture
def store(world: World) -> MemoryStore:
    store = MemoryStore()
    world.save(store, Topology())
    return store


def forge(world: World, key: str, data: bytes) -> bytes:
    """Return an object whose first slab is no stored form, though all its tags fit."""
    form = ObjectFormat.of(world.namespace)
    chunk = next(chunk for chunk in form.grid.chunks if key.endswith(chunk.suffix))
    header = parse_header(data)
    lengths = [slab.stored_bytes for slab in header.table]
    slabs = [b"\x00", *(data[header.header_bytes :][cut] for cut in cuts_of(lengths)[1:])]
    stored, facts = b"".join(slabs), form._expect(chunk)
    sizes = tuple(map(len, slabs))
    head, text = form._seal(key[:64], facts, memoryview(stored), sizes, None, None)
    return head + stored + text


@pytest.mark.parametrize("path", [p for p in GOLDEN if "mla" not in p.name], ids=lambda p: p.stem)
def test_an_object_alone_tells_what_it_is(path: Path) -> None:
    found = inspect(str(path))
    assert found.form == "object"
    assert found.header is not None
    assert found.header.codec == "zstd"
    assert found.size_bytes == found.wanted_bytes == path.stat().st_size
    assert {part.state for part in found.tagged} == {"ok"}
    assert found.ok


def test_a_store_is_verified(world: World, store: MemoryStore) -> None:
    found = survey(store, "memory://", verify=True)
    [content] = found.namespaces
    assert (content.objects, content.verified_objects, content.unverified_objects) == (12, 12, 0)
    assert (content.complete_pages, content.damaged_objects, content.wrong_size_objects) == (
        3,
        0,
        0,
    )
    assert found.ok
    assert "codec" in namespace_lines(content.namespace)
    assert "(at most " in namespace_lines(content.namespace)["page"]
    page = inspect_page(store, "memory://", world.pages[1])
    assert [chunk.state for chunk in page.namespaces[0].chunks] == ["ok"] * 4
    assert page.namespaces[0].page_indices == (1,)


def test_damage_is_told_in_every_form(world: World, store: MemoryStore) -> None:
    cut, flipped, forged, short = keys_of(store, world.pages[1])
    change(store, cut, lambda data: data[:-1])
    change(store, flipped, lambda data: data[:600] + bytes([data[600] ^ 1]) + data[601:])
    write(store, forged, forge(world, forged, bytes(read(store, forged))))
    write(store, short, b"x" * 512)
    size = len(read(store, cut))
    [content] = survey(store, "memory://", verify=True).namespaces
    assert (content.damaged_objects, content.wrong_size_objects) == (3, 1)
    faults = {fault.key: f"{fault.where}: {fault.detail}" for fault in content.damaged}
    assert faults[cut] == f"size: {size} bytes are stored, want {size + 1}"
    assert faults[flipped].startswith("slab ")
    assert faults[forged].startswith("slab 0: 1 bytes: want lengths of planes")
    assert content.wrong_size[0].detail.startswith("512 bytes are stored, want 9")
    [page] = inspect_page(store, "memory://", world.pages[1]).namespaces
    assert [chunk.state for chunk in page.chunks] == ["damaged"] * 3 + ["wrong_size"]
    for key in (cut, flipped, forged, short):
        found = inspect_store(store, "memory://", key)
        assert found.form == "object"
        assert not found.ok
    found = inspect_store(store, "memory://", cut)
    assert found.form == "object"
    assert [fault.where for fault in found.faults] == ["size"]
    assert found.wanted_bytes == size + 1


def test_no_flip_of_an_object_goes_unseen(world: World, store: MemoryStore) -> None:
    key = keys_of(store, world.pages[0])[0]
    good = bytes(read(store, key))
    for at in range(0, len(good), 3):
        bad = good[:at] + bytes([good[at] ^ 0x11]) + good[at + 1 :]
        write(store, key, bad)
        found = inspect_store(store, "memory://", key)
        assert found.form == "object"
        assert found.faults, at


class Sizeless(MemoryStore):
    """A store that tells no size when it lists."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return (Entry(e.key, UNKNOWN_SIZE, None) for e in super().list(prefix))


def test_without_sizes_coded_objects_stay_unverified(world: World) -> None:
    store = Sizeless()
    world.save(store, Topology())
    [content] = survey(store, "memory://", verify=True).namespaces
    assert (content.complete_pages, content.unverified_objects) == (3, 12)
    [page] = inspect_page(store, "memory://", world.pages[0]).namespaces
    assert {(c.state, c.detail) for c in page.chunks} == {("unverified", "the store tells no size")}


def test_without_the_library_a_store_is_verified_by_its_tags(
    monkeypatch: pytest.MonkeyPatch, world: World, store: MemoryStore
) -> None:
    key = keys_of(store, world.pages[1])[1]
    change(store, key, lambda data: data[:600] + bytes([data[600] ^ 1]) + data[601:])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    [content] = survey(store, "memory://", verify=True).namespaces
    assert (content.verified_objects, content.damaged_objects) == (12, 1)
