"""Reads and writes object by object: what is found bad is what reads of all at once find."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from unikv.backends.file import FileStore
from unikv.backends.memory import MemoryStore
from unikv.geometry import Box, Interval, Phase
from unikv.namespace import Namespace
from unikv.orders import Read, ReadDone, ReadPart, Write, WriteDone, WritePage
from unikv.pages import page_hashes
from unikv.passage import Passage
from unikv.performing import perform
from unikv.spec import KVSpec
from unikv.store import Item, Outcomes, Span, Store

SPEC = KVSpec.mha(layers=6, kv_heads=4, head_dim=2, dtype="int16", page_tokens=2)
NAMESPACE = Namespace(
    spec=SPEC, weights="unversioned", model="toy", rope="none", layers_per_chunk=2
)
PASSAGES = [  # all of a page, and what begins and ends within chunks
    Passage.of(NAMESPACE, Box(Interval(0, 6), Interval(0, 4), Phase()), None),
    Passage.of(NAMESPACE, Box(Interval(1, 5), Interval(0, 4), Phase()), None),
]
PAGES = page_hashes(range(12), 2)


def staging(passage: Passage) -> int:
    return len(PAGES) * passage.read.page_bytes


def write(store: Store) -> dict[str, bytes]:
    """Store all pages; return the objects."""
    passage = PASSAGES[0]
    memory = memoryview(bytearray(Random(1).randbytes(staging(passage))))
    rows = [WritePage(page, None, n, range(3)) for n, page in enumerate(PAGES)]
    answer = perform(store, memory, Write(passage, 0, rows), monotonic() + 9)
    assert isinstance(answer, WriteDone)
    assert (answer.stored, answer.failed) == (len(PAGES) * 3, [])
    found = {}
    for key in passage.read.keys(PAGES):
        [size] = store.stat([key])
        assert size
        data = bytearray(size)
        assert store.get([Span(key, 0, size, (memoryview(data),))]).ok
        found[key] = bytes(data)
    assert answer.written == sum(map(len, found.values()))
    return found


def read(store: Store, memory: memoryview, *, verify: bool = True) -> ReadDone:
    """Read both boxes with one order, one behind the other."""
    parts = [
        ReadPart(PASSAGES[0], 0, PAGES),
        ReadPart(PASSAGES[1], staging(PASSAGES[0]), PAGES, Interval(0, 3)),
    ]
    answer = perform(store, memory, Read(parts, verify), monotonic() + 9)
    assert isinstance(answer, ReadDone)
    assert answer.error is None
    return answer


def room() -> memoryview:
    return memoryview(bytearray(sum(map(staging, PASSAGES))))


def test_both_ways_store_the_same_and_find_the_same_bad(tmp_path: Path) -> None:
    file, memory = FileStore(tmp_path), MemoryStore()
    objects = write(file)
    assert write(memory) == objects
    places = room(), room()
    assert read(file, places[0]).bad == read(memory, places[1]).bad == []
    assert places[0] == places[1]
    random, seen = Random(3), set()
    for _ in range(60):
        spoilt = {key: bytearray(objects[key]) for key in random.sample(list(objects), 3)}
        for data in spoilt.values():
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        first, second, third = spoilt
        del spoilt[third][random.randrange(1, len(spoilt[third])) :]
        for store in (file, memory):
            store.delete([first])
            assert store.put([Item(key, [spoilt[key]]) for key in (second, third)], replace=True).ok
        mine, theirs = read(file, places[0]), read(memory, places[1])
        # Each says in its own words why it cannot read beyond an object's end.
        assert [bad[:3] for bad in mine.bad] == [bad[:3] for bad in theirs.bad]
        assert [bad.kind for bad in mine.bad] == [bad.kind for bad in theirs.bad]
        assert mine.damaged == theirs.damaged
        seen |= {bad.kind for bad in mine.bad}
        for store in (file, memory):
            assert store.put([Item(key, [objects[key]]) for key in spoilt], replace=True).ok
    assert seen == {"missing", "damaged", "error"}


@pytest.mark.parametrize("spoil", [False, True], ids=["then right", "then damaged"])
def test_what_comes_at_a_later_try_is_checked_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, spoil: bool
) -> None:
    store = FileStore(tmp_path)
    write(store)
    preadv: Callable[..., int] = os.preadv
    calls: list[int] = []

    def stale(fd: int, into: Sequence[memoryview], start: int) -> int:
        calls.append(fd)
        if len(calls) in (5, 17):  # their bytes come, and yet they fail
            preadv(fd, into, start)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        done = preadv(fd, into, start)
        if spoil and len(calls) == asked + 1:
            into[0][-1] ^= 1
        return done

    asked = len(PAGES) * (3 + 3)  # the second box takes a header more, and a chunk less
    monkeypatch.setattr(os, "preadv", stale)
    answer = read(store, room())
    assert len(calls) == asked + 2
    assert answer.retries == 1
    assert [bad.kind for bad in answer.bad] == (["damaged"] if spoil else [])
    assert len(answer.damaged) == spoil


class Wrapped:
    """A store that passes on what it does not know."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[str] = []

    def get(self, spans: Sequence[Span]) -> Outcomes:
        self.calls.append("get")
        return self._store.get(spans)

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        self.calls.append("put")
        return self._store.put(items, replace=replace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_wrapper_is_not_passed_by(tmp_path: Path) -> None:
    store: Any = Wrapped(FileStore(tmp_path))
    write(store)
    assert store.calls[0] == "put"
    store.calls.clear()
    assert read(store, room()).bad == []
    assert store.calls == ["get"]


class Own(FileStore):
    """A store whose maker overrides what all reads and writes are to go through."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        self.__dict__["asked"] = self.__dict__.get("asked", 0) + 1
        return super().get(spans)

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        self.__dict__["given"] = self.__dict__.get("given", 0) + 1
        return super().put(items, replace=replace)


def test_who_overrides_get_and_put_is_not_passed_by(tmp_path: Path) -> None:
    store = Own(tmp_path)
    write(store)
    memory = memoryview(bytearray(sum(staging(passage) for passage in PASSAGES)))
    assert not read(store, memory).bad
    assert store.__dict__["asked"]
    assert store.__dict__["given"]


@pytest.mark.parametrize("in_turn", [True, False], ids=["in turn", "at once"])
def test_of_a_write_that_cannot_go_on_what_was_stored_is_reported(
    tmp_path: Path, *, in_turn: bool
) -> None:
    store = FileStore(tmp_path) if in_turn else Own(tmp_path)
    passage = PASSAGES[0]
    memory = memoryview(bytearray(staging(passage)))
    rows = [WritePage(page, None, n, range(3)) for n, page in enumerate(PAGES[:3])]
    rows[2] = rows[2]._replace(number=1 << 32)  # more than a header can hold
    answer = perform(store, memory, Write(passage, 0, rows), monotonic() + 9)
    assert isinstance(answer, WriteDone)
    assert (answer.stored, answer.error, answer.outage) == (6, None, False)
    assert len(list(store.list())) == 6
    assert [(one.page, one.key[:64]) for one in answer.failed] == [(2, PAGES[2])] * 3
    assert all("FormatError" in one.reason for one in answer.failed)
