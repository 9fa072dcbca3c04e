"""Hints: namespaces of a family find each other, whatever lies in the slots."""

import struct
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.identity.samples import DictStore, make
from unikv.errors import FormatError
from unikv.hints import HINT_BYTES, announce, decode_hint, encode_hint, hint_key, read_hints
from unikv.namespace import Namespace
from unikv.store import Item, Outcome, Outcomes, Span, check_key

MINE = make(model="llama", layers_per_chunk=3)
FAMILY = MINE.family
SIBLINGS = [
    make(layer_cuts=(0, *cuts, 6))
    for count in range(4)
    for cuts in combinations(range(1, 6), count)
    if cuts != (3,)
][:16]
KEY = hint_key(FAMILY, 0)
RECORD = encode_hint(MINE, 0)


def sealed(body: bytes, key: str = KEY) -> bytes:
    """Return a record of ``body`` whose tag is right."""
    body = body.ljust(HINT_BYTES - 8, b"\0")
    seed = (xxh3_64_intdigest(key.encode()) + 2**35) % 2**64
    return body + struct.pack("<Q", xxh3_64_intdigest(body, seed))


def test_a_record_is_built_byte_for_byte_as_the_format_says() -> None:
    text = MINE.canonical
    assert sealed(struct.pack("<I", len(text)) + text + b"llama") == RECORD
    assert len(RECORD) == 4096
    for slot in range(16):
        check_key(hint_key(FAMILY, slot))


def test_a_record_gives_namespace_and_label_back() -> None:
    hint = decode_hint(KEY, RECORD)
    assert (hint.namespace, hint.label) == (MINE, "llama")
    assert decode_hint(KEY, memoryview(bytearray(RECORD))) == hint
    assert decode_hint(KEY, encode_hint(make(layers_per_chunk=3), 0)).label == ""


@pytest.mark.parametrize("letter", ["x", "é", "日", "👍"])
def test_a_long_label_is_cut_between_characters(letter: str) -> None:
    hint = decode_hint(KEY, encode_hint(make(model=letter * 4000, layers_per_chunk=3), 0))
    room = 4084 - len(MINE.canonical)
    assert hint.label == letter * (room // len(letter.encode()))


def test_a_label_alone_is_no_other_namespace(store: DictStore) -> None:
    assert announce(store, MINE) == 0
    assert announce(store, make(model="another label", layers_per_chunk=3)) == 0
    assert [hint.label for hint in read_hints(store, FAMILY)] == ["llama"]


@given(st.integers(0, HINT_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_is_no_hint(place: int, change: int) -> None:
    damaged = bytearray(RECORD)
    damaged[place] ^= change
    with pytest.raises(FormatError):
        decode_hint(KEY, damaged)


TEXT = struct.pack("<I", len(MINE.canonical)) + MINE.canonical
FOREIGN = make(rope="none")
HOSTILE = {
    "empty": b"",
    "short": RECORD[:-1],
    "zeros": bytes(HINT_BYTES),
    "another slot": encode_hint(MINE, 1),
    "another family": sealed(struct.pack("<I", len(FOREIGN.canonical)) + FOREIGN.canonical),
    "a length past the text": sealed(b"\xff\xff\xff\xff" + MINE.canonical),
    "a length of 4001": sealed(struct.pack("<I", 4001) + MINE.canonical),
    "a length too long": sealed(struct.pack("<I", len(MINE.canonical) + 1) + MINE.canonical),
    "a length too short": sealed(struct.pack("<I", len(MINE.canonical) - 1) + MINE.canonical),
    "a text that is none": sealed(struct.pack("<I", 2) + b"{}"),
    "a label that is no UTF-8": sealed(TEXT + b"\xff"),
    "a label that moves the cursor": sealed(TEXT + b"\x1b[2J"),
    "bytes behind the label": sealed(TEXT + b"llama\0x"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_hint_is_a_format_error_and_is_skipped(data: bytes, store: DictStore) -> None:
    with pytest.raises(FormatError):
        decode_hint(KEY, data)
    store.objects[KEY] = data
    assert read_hints(store, FAMILY) == []
    assert announce(store, MINE) == 1
    assert store.objects[KEY] == data
    assert [hint.namespace for hint in read_hints(store, FAMILY)] == [MINE]


def test_a_record_has_one_size() -> None:
    with pytest.raises(FormatError, match="of 4097 bytes: want a hint key, 4096"):
        decode_hint(KEY, RECORD + b"\0")


@pytest.mark.parametrize("key", ["", "ns_", KEY + "\n", f"ns_{FAMILY}_16", f"ns_{FAMILY}_00"])
def test_a_key_of_no_slot_holds_no_hint(key: str) -> None:
    with pytest.raises(FormatError, match="want a hint key"):
        decode_hint(key, sealed(TEXT, key))


def test_opening_a_store_costs_one_batch_of_reads(store: DictStore) -> None:
    for sibling in SIBLINGS[:3]:
        announce(store, sibling)
    store.calls.clear()
    assert [hint.namespace for hint in read_hints(store, FAMILY)] == SIBLINGS[:3]
    assert store.calls == [("get", 16)]


def test_who_is_announced_already_puts_nothing(store: DictStore) -> None:
    assert announce(store, MINE) == 0
    store.calls.clear()
    assert announce(store, MINE) == 0
    assert store.calls == [("get", 16)]


def test_a_hint_that_went_missing_is_put_again(store: DictStore) -> None:
    assert [announce(store, namespace) for namespace in (SIBLINGS[0], MINE)] == [0, 1]
    del store.objects[KEY]
    assert announce(store, MINE) == 1
    assert announce(store, SIBLINGS[0]) == 0
    assert len(read_hints(store, FAMILY)) == 2


def test_all_slots_taken_leaves_one_unannounced(store: DictStore) -> None:
    assert [announce(store, sibling) for sibling in SIBLINGS[:16]] == list(range(16))
    before = dict(store.objects)
    assert announce(store, MINE) is None
    assert store.objects == before
    assert [hint.namespace for hint in read_hints(store, FAMILY)] == SIBLINGS[:16]


def test_families_do_not_see_each_other(store: DictStore) -> None:
    announce(store, MINE)
    assert announce(store, FOREIGN) == 0
    assert [hint.namespace for hint in read_hints(store, FOREIGN.family)] == [FOREIGN]


class RacedStore(DictStore):
    """A store where somebody else takes the slot between the look and the put."""

    def __init__(self, rivals: list[Namespace], *, overwrites: bool = False) -> None:
        super().__init__()
        self.rivals = rivals
        self.overwrites = overwrites

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        slot = int(items[0].key.rpartition("_")[2])
        outcomes = super().put(items, replace=replace) if self.overwrites else None
        if self.rivals:
            record = encode_hint(self.rivals.pop(0), slot)
            super().put([Item(items[0].key, [record])], replace=self.overwrites)
        return outcomes or super().put(items, replace=replace)


@pytest.mark.parametrize("overwrites", [False, True], ids=["if-absent", "last writer wins"])
def test_who_loses_a_race_for_a_slot_moves_on(*, overwrites: bool) -> None:
    store = RacedStore(SIBLINGS[:2], overwrites=overwrites)
    assert announce(store, MINE) == 2
    assert [hint.namespace for hint in read_hints(store, FAMILY)] == [*SIBLINGS[:2], MINE]


def test_who_meets_its_own_record_in_a_race_stays() -> None:
    store = RacedStore([MINE])
    assert announce(store, MINE) == 0
    assert len(read_hints(store, FAMILY)) == 1


class FailingStore(DictStore):
    """A store where no call succeeds."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        return Outcomes([Outcome.FAILED] * len(spans))


def test_a_store_that_fails_leaves_one_unannounced() -> None:
    assert announce(FailingStore(), MINE) is None
    assert read_hints(FailingStore(), FAMILY) == []
