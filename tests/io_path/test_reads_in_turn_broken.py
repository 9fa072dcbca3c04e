"""Reads in turn of what somebody broke, held against a plain comparison of bytes."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from unikv.backends.file import FileStore
from unikv.geometry import Box, Interval, Phase
from unikv.namespace import Namespace
from unikv.orders import Read, ReadDone, ReadPart, Write, WriteDone, WritePage
from unikv.pages import page_hashes
from unikv.passage import Passage
from unikv.performing import perform
from unikv.spec import KVSpec
from unikv.store import Item, Outcome, Span

KEY = bytes(range(32))
HEADS = KVSpec.mha(layers=6, kv_heads=4, head_dim=2, dtype="int16", page_tokens=4)
LATENTS = KVSpec.mla(layers=5, dim=7, dtype="int8", page_tokens=4)
FACTS: dict[str, Any] = {"weights": "unversioned", "model": "toy", "rope": "none"}
NAMESPACES = {
    "heads": Namespace(spec=HEADS, layers_per_chunk=2, heads_per_chunk=2, **FACTS),
    "phases": Namespace(spec=LATENTS, layer_cuts=(0, 1, 5), phases=2, interleave=2, **FACTS),
    "keyed": Namespace(spec=LATENTS, layers_per_chunk=5, tags="blake3_keyed", **FACTS),
}
ALL = Phase()
BOXES = {
    "heads": [
        Box(Interval(0, 6), Interval(0, 4), ALL),
        Box(Interval(1, 5), Interval(2, 4), ALL),
        Box(Interval(3, 4), Interval(1, 3), ALL),
    ],
    "phases": [
        Box(Interval(0, 5), Interval(0, 1), ALL),
        Box(Interval(2, 5), Interval(0, 1), Phase(1, 2, 2)),
    ],
    "keyed": [Box(Interval(0, 5), Interval(0, 1), ALL), Box(Interval(1, 4), Interval(0, 1), ALL)],
}
PAGES = page_hashes(range(16), 4)
ROUNDS = 150


def path_of(store: FileStore, key: str) -> Path:
    return Path(store.root, key[:2], key[2:4], key)


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def filled(store: FileStore, name: str) -> dict[str, bytes]:
    """Store all pages of a namespace; return the objects."""
    whole = Passage.of(NAMESPACES[name], BOXES[name][0], KEY)
    memory = memoryview(bytearray(Random(1).randbytes(len(PAGES) * whole.write.page_bytes)))
    rows = [
        WritePage(page, None, n, range(len(whole.write.chunks))) for n, page in enumerate(PAGES)
    ]
    answer = perform(store, memory, Write(whole, 0, rows), monotonic() + 9)
    assert isinstance(answer, WriteDone)
    assert not answer.failed
    return {key: path_of(store, key).read_bytes() for key in whole.read.keys(PAGES)}


def spoilt(random: Random, objects: dict[str, bytes], key: str) -> bytes:
    """Return an object after one fault: flipped, cut off, or with bytes of another."""
    data = bytearray(objects[key])
    other = objects[random.choice(list(objects))]
    match random.choice(("any", "header", "cut", "swapped", "foreign", "zeros")):
        case "any":
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        case "header":
            data[random.randrange(512)] ^= 1 << random.randrange(8)
        case "cut":
            del data[random.randrange(len(data)) :]
        case "swapped":
            data[:] = other
        case "foreign":
            at = random.randrange(min(len(data), len(other)))
            data[at : at + 40] = other[at : at + 40]
        case "zeros":
            at = random.randrange(len(data))
            data[at : at + 16] = bytes(len(data[at : at + 16]))
    return bytes(data)


def wrong(part: ReadPart, right: dict[str, bytes], stored: dict[str, bytes]) -> set[int]:
    """Return the pages of which a byte that the part covers is not what was written."""
    plan = part.passage.read
    found = set()
    for n, page in enumerate(part.pages):
        for c, slabs in plan.touched(part.layers):
            key, size = page + plan.key_tails[c], plan.chunks[c].slab_bytes
            base = plan.header_bytes + plan.first_slab[c] * size
            start, stop = base + slabs.start * size, base + slabs.stop * size
            seen = [(0, plan.header_bytes), (start, stop)] if not slabs.start else [(start, stop)]
            if any(stored[key][at:end] != right[key][at:end] for at, end in seen):
                found.add(n)
    return found


@pytest.mark.parametrize("name", NAMESPACES)
def test_any_box_or_stream_tells_just_the_pages_that_differ(tmp_path: Path, name: str) -> None:
    store, random, told = FileStore(tmp_path), Random(7), 0
    right = filled(store, name)
    passages = [Passage.of(NAMESPACES[name], box, KEY) for box in BOXES[name]]
    for _ in range(ROUNDS):
        broken = {key: spoilt(random, right, key) for key in random.sample(list(right), 2)}
        for key, data in broken.items():
            path_of(store, key).write_bytes(data)
        stored = right | broken
        passage = random.choice(passages)
        memory = memoryview(bytearray(random.randbytes(len(PAGES) * passage.read.page_bytes)))
        layers = passage.box.layers.size
        cut = random.randrange(1, layers + 1)
        lost: set[int] = set()
        for window in (Interval(0, cut), Interval(cut, layers)) if cut < layers else (None,):
            part = ReadPart(passage, 0, PAGES, window)
            answer = perform(store, memory, Read([part], verify=True), monotonic() + 9)
            assert isinstance(answer, ReadDone)
            assert answer.error is None
            bad = {one.page for one in answer.bad}
            # A header that was bad before makes the next window of a stream bad, too.
            assert bad - lost == wrong(part, right, stored) - lost
            assert wrong(part, right, stored) <= bad
            lost |= bad
        told += len(lost)
        for key in broken:
            path_of(store, key).write_bytes(right[key])
    assert told > ROUNDS // 4


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_it(path: Path) -> None:
    path.symlink_to(path.with_name("held"))


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


OBJECTS: list[Callable[[Path], None]] = [a_folder, os.mkfifo, a_link_to_it, a_device, Path.touch]
FOLDERS: list[Callable[[Path], None]] = [os.mkfifo, a_link_to_it, Path.touch]


@pytest.fixture
def no_hang() -> Iterator[None]:
    signal.alarm(20)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct"])
@pytest.mark.parametrize(
    ("put", "folder"), [*((one, False) for one in OBJECTS), *((one, True) for one in FOLDERS)]
)
def test_what_is_no_object_is_none_and_stays_unread_in_any_batch(
    tmp_path: Path, put: Callable[[Path], None], *, folder: bool, direct: bool
) -> None:
    store = FileStore(tmp_path, direct=direct)
    keys = [f"{'ab' * 32}_{n}" for n in range(10)]
    assert store.put([Item(key, [b"x" * 5000]) for key in keys]).ok
    place = path_of(store, keys[4])
    place = place.parent if folder else place
    place.rename(place.with_name("held"))
    put(place)
    before = descriptors()
    for many in (10, 2):  # with the folder held open, and without
        codes: list[Outcome] = []
        for first in range(0, 10, many):
            spans = [
                Span(key, 0, 100, (memoryview(bytearray(100)),))
                for key in keys[first : first + many]
            ]
            codes += store.get(spans).codes
        lost = set(range(10)) if folder else {4}
        assert {n for n, code in enumerate(codes) if code != Outcome.OK} == lost
        sizes = store.stat(keys)
        assert {n for n in lost if sizes[n]} == set()
    assert descriptors() == before


def test_a_folder_that_turns_into_a_link_in_mid_batch_leads_nowhere(tmp_path: Path) -> None:
    store, other = FileStore(tmp_path / "kv"), FileStore(tmp_path / "other")
    keys = [f"{'ab' * 32}_{n}" for n in range(12)]
    for one, byte in ((store, b"x"), (other, b"o")):
        assert one.put([Item(key, [byte * 100]) for key in keys]).ok
    here, there = path_of(store, keys[0]).parent, path_of(other, keys[0]).parent
    spans = [Span(key, 0, 100, (memoryview(bytearray(100)),)) for key in keys]

    def turn(position: int) -> None:
        if position == 5:
            here.rename(here.with_name("held"))
            here.symlink_to(there)

    codes = store.get_in_turn(spans, turn).codes
    assert set(codes[:6]) == {Outcome.OK}
    assert set(codes[6:]) <= {Outcome.OK, Outcome.FAILED}
    assert set(store.get(spans).codes) == {Outcome.FAILED}  # now all of it is behind the link
    assert all(b"o" not in bytes(into) for _, _, _, [into] in spans)


def test_an_object_replaced_between_its_ranges_is_read_from_one_version(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    old = {f"{'ab' * 32}_{n}": bytes([n]) * 300 for n in range(10)}
    assert store.put([Item(key, [data]) for key, data in old.items()]).ok
    spans = [
        Span(key, at, at + 100, (memoryview(bytearray(100)),)) for key in old for at in (0, 200)
    ]

    def replace(position: int) -> None:
        if position % 2 == 0:
            assert store.put([Item(spans[position].key, [b"new" * 100])], replace=True).ok

    assert store.get_in_turn(spans, replace).ok
    for key, start, stop, [into] in spans:
        assert bytes(into) == old[key][start:stop]
