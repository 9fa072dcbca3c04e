"""Audit: it vouches for an object exactly where the check of that object alone finds no fault."""

from collections.abc import Sequence
from functools import cache
from random import Random

import pytest

from unikv.audit import Audit
from unikv.fetching import spans_of
from unikv.geometry import Box, Interval, Phase
from unikv.namespace import Namespace
from unikv.orders import ReadPart
from unikv.passage import Passage
from unikv.spec import KVSpec
from unikv.store import Span

SPEC = KVSpec.mha(layers=6, kv_heads=4, head_dim=2, dtype="int16", page_tokens=2)
PAGES = [f"{n}{'ab' * 31}{n}" for n in range(3)]
KEY = b"a secret of 16 b"

BOXES = {
    "whole": Box(Interval(0, 6), Interval(0, 4), Phase()),
    "half": Box(Interval(1, 5), Interval(0, 2), Phase()),  # begins and ends within chunks
    "one": Box(Interval(3, 4), Interval(2, 4), Phase()),
}
LAYERS = [None, Interval(0, 1), Interval(1, 3)]


@cache
def passage_of(box: str, tags: str) -> Passage:
    """Chunks of two layers and two heads."""
    namespace = Namespace(
        spec=SPEC,
        weights="unversioned",
        model="toy",
        rope="none",
        layers_per_chunk=2,
        heads_per_chunk=2,
        tags=tags,
    )
    return Passage.of(namespace, BOXES[box], KEY)


class Bytes:
    """Objects of all pages under their keys."""

    def __init__(self, passage: Passage) -> None:
        random = Random(5)
        self.objects: dict[str, bytes] = {}
        for page in PAGES:
            for chunk in passage.format.grid.chunks:
                payload = random.randbytes(chunk.payload_bytes)
                head, tail = passage.format.encode(page, chunk, payload)
                self.objects[passage.format.key(page, chunk)] = head + payload + tail

    def fill(self, spans: Sequence[Span]) -> None:
        for key, start, stop, (view,) in spans:
            view[:] = self.objects[key][start:stop]


def checked(part: ReadPart, memory: memoryview) -> set[tuple[int, int]]:
    """Return what the check of one object after the other finds damaged."""
    plan, form = part.passage.read, part.passage.format
    found = set()
    for page, name in enumerate(part.pages):
        for n, (c, slabs) in enumerate(plan.touched(part.layers)):
            at = part.at + page * plan.page_bytes + plan.place[c]
            body, size = at + form.header_bytes, plan.chunks[c].slab_bytes
            if form.check_apart(
                name,
                plan.chunks[c],
                memory[at:body],
                memory[body + slabs.start * size : body + slabs.stop * size],
                plan.first_slab[c] + slabs.start,
                slabs.size,
            ):
                found.add((page, n))
    return found


def heard(part: ReadPart, memory: memoryview, spans: int) -> Audit:
    audit = Audit(part, memory)
    hear = audit.listener()
    for span in range(spans):
        hear(span)
    return audit


class Case:
    """Pages of one box that were read whole, then some layers of them, to the same place."""

    def __init__(self, box: str, tags: str, layers: Interval | None) -> None:
        passage = passage_of(box, tags)
        self.at = 4096
        self.memory = memoryview(bytearray(self.at + len(PAGES) * passage.read.page_bytes))
        self.stored = Bytes(passage)
        # Later layers find the headers of their chunks where the first ones brought them.
        self.stored.fill(spans_of(ReadPart(passage, self.at, PAGES), self.memory))
        self.part = ReadPart(passage, self.at, PAGES, layers)
        self.spans = spans_of(self.part, self.memory)


CASES = [
    (box, layers)
    for box, held in BOXES.items()
    for layers in LAYERS
    if layers is None or layers.stop <= held.layers.size
]


@pytest.mark.parametrize(("box", "layers"), CASES, ids=str)
@pytest.mark.parametrize("tags", ["xxh3_64", "blake3_keyed"])
def test_every_bit_counts_as_it_does_for_one_object(
    box: str, tags: str, layers: Interval | None
) -> None:
    case = Case(box, tags, layers)
    part, memory, spans = case.part, case.memory, len(case.spans)
    assert heard(part, memory, spans).suspects() == sorted(checked(part, memory)) == []
    random, caught = Random(7), 0
    for at in range(case.at, len(memory), 1 + len(memory) // 1500):
        bit = 1 << random.randrange(8)
        memory[at] ^= bit
        found = heard(part, memory, spans).suspects()
        assert found == sorted(checked(part, memory)), at
        caught += bool(found)
        memory[at] ^= bit
    assert caught > 50


def test_an_object_of_another_page_or_chunk_is_suspect() -> None:
    case = Case("whole", "xxh3_64", None)
    keys = [span.key for span in case.spans]
    other = len(keys) // len(PAGES)
    for n, wrong in ((0, 1), (1, other + 1), (2 * other, 0)):
        case.stored.fill([case.spans[n]._replace(key=keys[wrong])])
        found = heard(case.part, case.memory, len(keys)).suspects()
        assert found == [*checked(case.part, case.memory)] == [divmod(n, other)]
        case.stored.fill([case.spans[n]])


@pytest.mark.parametrize("layers", LAYERS, ids=str)
def test_what_did_not_come_whole_is_suspect(layers: Interval | None) -> None:
    case = Case("half", "xxh3_64", layers)
    width = len(case.spans) // len(PAGES)
    tails = [case.part.passage.read.key_tails[c] for c, _ in case.part.passage.read.touched(layers)]
    for lost in range(len(case.spans)):
        audit = Audit(case.part, case.memory)
        hear = audit.listener()
        for span in range(len(case.spans)):
            if span != lost:
                hear(span)
        page = lost // width
        assert audit.suspects() == [(page, tails.index(case.spans[lost].key[64:]))]


def test_no_page_and_no_layer_are_no_fault() -> None:
    passage = passage_of("half", "xxh3_64")
    memory = memoryview(bytearray(8192))
    assert Audit(ReadPart(passage, 4096, []), memory).suspects() == []
    empty = ReadPart(passage, 0, PAGES[:1], Interval(2, 2))
    assert Audit(empty, memory).suspects() == []
