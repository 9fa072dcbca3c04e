"""Bundle faults: stored objects made wrong, and what a rank may then restore, by brute force.

Which endpoint is right comes from `oracle`, which tries each; it knows no plan and no coverage rule
of unikv's. Of unikv this asks how long a header is.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from tests.components import oracle
from tests.components.bundles import Party, World, contents
from unikv.backends.memory import MemoryStore
from unikv.objects import ObjectFormat
from unikv.reports import LoadReport

How: TypeAlias = Literal["missing", "short", "flipped", "header"]
HOWS: tuple[How, ...] = ("missing", "short", "flipped", "header")
SEEN_BY_STAT = ("missing", "short")

_CHUNK = re.compile(r"L(\d+)-(\d+)(?:_H(\d+))?\Z")


class Fault(NamedTuple):
    """One chunk of one page of one component, made wrong."""

    name: str
    page: int
    how: How
    chunk: int = 0  # any number: which of the page's chunks
    at: int = 0  # any number: which byte of the payload


class Place(NamedTuple):
    """Where a fault is, in DESIGN's words."""

    key: str
    layers: range  # ordinals that the chunk holds
    heads: range
    layer: int  # that has the flipped byte


def find(world: World, store: MemoryStore, fault: Fault) -> Place:
    """Return the object that a fault is in; the store holds all of them, or did."""
    namespace = world.namespaces[fault.name]
    begins = f"{world.path[fault.page]}_{namespace.digest}_"
    keys = sorted(key for key in contents(store) if key.startswith(begins))
    key = keys[fault.chunk % len(keys)]
    parts = _CHUNK.match(key[len(begins) :])
    assert parts
    first, stop, group = (int(part or 0) for part in parts.groups())
    size = namespace.heads_per_chunk
    return Place(
        key,
        range(first, stop),
        range(group * size, (group + 1) * size),
        first + fault.at % (stop - first),
    )


def spoil(world: World, store: MemoryStore, fault: Fault) -> Place:
    """Make a stored object wrong; return where."""
    place = find(world, store, fault)
    data = bytearray(store._objects[place.key][0])
    header = ObjectFormat.of(world.namespaces[fault.name]).header_bytes
    if fault.how == "short":
        del data[header + 1 :]
    elif fault.how == "flipped":
        spec = world.namespaces[fault.name].spec
        slab = spec.layer_bytes * len(place.heads) // spec.kv_heads
        at = header + (place.layer - place.layers[0]) * slab + fault.at % slab
        data[at] ^= 1 << fault.at % 8
    elif fault.how == "header":
        data[fault.at % header] ^= 1 << fault.at % 8
    store._objects[place.key] = (bytes(data), 0.0)
    if fault.how == "missing":
        del store._objects[place.key]
    return place


def hurts(party: Party, fault: Fault, place: Place) -> bool:
    """Tell whether a rank reads what is wrong: a flipped layer alone, or else any of the chunk."""
    held = party.held[fault.name]
    wanted = {place.layer} if fault.how == "flipped" else set(place.layers)
    mine = fault.page in party.owned(fault.name)
    return mine and bool(wanted & set(held.layers) and set(place.heads) & set(held.heads))


Faults: TypeAlias = Sequence[tuple[Fault, Place]]


class Answer(NamedTuple):
    """What a load should restore: an endpoint, and of each component up to which page."""

    endpoint: int
    valid: dict[str, int]
    pages: dict[str, set[int]]  # by component: what is then in the pool


def answer(party: Party, faults: Faults) -> Answer:
    """Return what a rank should restore, having tried all endpoints."""
    model = party.world.model
    lost = {name: set[int]() for name in model.caches}
    for fault, place in faults:
        if hurts(party, fault, place):
            lost[fault.name].add(fault.page)
    held = {
        name: (one.rule, set(range(model.pages)) - lost[name]) for name, one in model.caches.items()
    }
    required = {name: held[name] for name, one in model.caches.items() if one.need == "required"}
    endpoint = oracle.best(required, model.pages, model.page_tokens)
    valid, pages = {}, {}
    for name, (rule, there) in held.items():
        tries = range(endpoint, -1, -1) if rule.kind == "every" else (endpoint, 0)
        valid[name] = next(
            end for end in tries if oracle.needed(rule, end, model.page_tokens) <= set(there)
        )
        pages[name] = oracle.needed(rule, valid[name], model.page_tokens)
    return Answer(endpoint, valid, pages)


def check(party: Party, report: LoadReport, faults: Faults, loose: range = range(0)) -> Answer:
    """Check a load's report and the pools of its rank; of pages in ``loose`` any may be there."""
    model = party.world.model
    right = answer(party, faults)
    assert report.pages == right.endpoint, report.stopped
    assert dict(report.valid) == right.valid
    assert not party.holds(right.pages, loose)
    assert (report.stopped is None) == (right.endpoint == model.pages) == (not report.failed)
    keys = {place.key for _, place in faults}
    assert {failure.key for failure in report.failed} <= keys
    dropped = {name for name, page in right.valid.items() if page < right.endpoint}
    assert set(report.dropped) == dropped
    for name in dropped:
        bad = [place.key for fault, place in faults if fault.name == name]
        assert any(key in report.dropped[name] for key in bad), report.dropped
    return right
