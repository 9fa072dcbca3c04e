"""Cross-grid: a reader whose own grid holds less reads by a sibling's, and saves by its own."""

import pytest

from tests.topology.fleets import World, contents
from tests.topology.oracle import (
    POISON,
    Cut,
    Deployment,
    Model,
    Seat,
    cells,
    payload,
    seats,
    shares,
)
from unikv.backends.memory import MemoryStore
from unikv.hints import encode_hint, hint_key

KV = Model(6, 4, (2, 1))
LATENTS = Model(6, 0, (3,))
PAGES = 5
OWN = {KV: Cut((0, 2, 4, 6), 1), LATENTS: Cut((0, 2, 4, 6))}
PHASED = {KV: Cut((0, 2, 4, 6), 1, 4), LATENTS: Cut((0, 2, 4, 6), 1, 4)}
OTHERS = {
    KV: [
        Cut((0, 3, 6), 2),
        Cut((0, 6), 4),
        Cut(tuple(range(7)), 1),
        Cut((0, 1, 5, 6), 4, 4),
        Cut((0, 5, 6), 2, 8),
    ],
    LATENTS: [Cut((0, 6)), Cut((0, 1, 5, 6)), Cut((0, 3, 6), 1, 4), Cut(tuple(range(7)), 1, 16)],
}
READERS = [
    Deployment(),
    Deployment(4, (2, 2, 2)),
    Deployment(8, (4, 2)),
    Deployment(2, (), 3),
    Deployment(1, (2, 4), 2, 2),
    Deployment(2, (), 1, 4),
]
ONE = Seat(0, 0, 0, 0)


def worlds(model: Model, other: Cut, *, phased: bool = False) -> tuple[World, World]:
    """Return a world by the readers' own grid and one of the same KV by a sibling's."""
    own = (PHASED if phased else OWN)[model]
    return World(model, own, PAGES), World(model, other, PAGES)


def announced(*held: tuple[World, int]) -> MemoryStore:
    """Return a store in which each world has its first pages, and its hint record."""
    store = MemoryStore()
    for slot, (world, pages) in enumerate(held):
        first = set(world.path[:pages])
        for key, data in world.objects.items():
            if key[:64] in first:
                store._objects[key] = (data, 0.0)
        namespace = world.namespace
        key = hint_key(namespace.family, slot)
        store._objects[key] = (encode_hint(namespace, slot), 0.0)
    return store


@pytest.mark.parametrize("deployment", READERS, ids=str)
@pytest.mark.parametrize("model", [KV, LATENTS], ids=["heads", "latents"])
def test_a_reader_with_nothing_of_its_own_reads_by_every_other_grid(
    model: Model, deployment: Deployment
) -> None:
    for other in OTHERS[model]:
        own, sibling = worlds(model, other, phased=deployment.dcp > 1)
        assert own.namespace.family == sibling.namespace.family
        store = announced((sibling, PAGES))
        if other.phases % deployment.dcp:
            own.load(store, deployment, pages=0)
            continue
        for member, report in own.load(store, deployment):
            own.check_cost(member, report, other)
            assert member.client.match(own.path).pages == PAGES
        assert contents(store) == contents(announced((sibling, PAGES)))


@pytest.mark.parametrize("model", [KV, LATENTS], ids=["heads", "latents"])
def test_what_was_read_by_a_sibling_is_saved_by_the_own_grid(model: Model) -> None:
    own, sibling = worlds(model, OTHERS[model][0])
    store = announced((sibling, PAGES))
    member = own.member(store, Deployment(), ONE)
    assert member.load(own.path).pages == PAGES
    assert member.save(own.path).stored == PAGES * len(cells(model, own.cut))
    assert contents(store) == contents(announced((sibling, PAGES), (own, PAGES)))
    for view in member.pool.views:
        view[:] = POISON
    own.check_cost(member, member.load(own.path))  # from now on by its own
    assert member.pool.holds(range(PAGES))


@pytest.mark.parametrize(("mine", "theirs"), [(5, 5), (3, 3), (4, 3), (2, 5), (0, 1), (3, 4)])
def test_the_longer_prefix_wins_and_the_own_one_where_they_tie(mine: int, theirs: int) -> None:
    own, sibling = worlds(KV, Cut((0, 3, 6), 2))
    store = announced((sibling, theirs), (own, mine))
    longest = max(mine, theirs)
    [(member, report)] = own.load(store, Deployment(), pages=longest)
    assert member.client.match(own.path).pages == longest
    read = own if mine >= theirs else sibling
    keys = [failure.key[65:97] for failure in report.failed]
    assert keys == [read.namespace.digest] * (longest < PAGES)
    per_page = len(cells(KV, read.cut))
    assert report.requests == longest * per_page  # whole chunks, of the pages that are there


def test_of_several_siblings_the_longest_is_read() -> None:
    own, first = worlds(KV, Cut((0, 3, 6), 2))
    second, third = (World(KV, cut, PAGES) for cut in (Cut((0, 6), 4), Cut((0, 1, 6), 2)))
    store = announced((first, 2), (second, 4), (third, 3), (own, 1))
    [(_, report)] = own.load(store, Deployment(), pages=4)
    assert report.requests == 4 * len(cells(KV, second.cut))


def test_each_context_rank_looks_at_its_own_pages_only() -> None:
    own, sibling = worlds(KV, Cut((0, 6), 4))
    store = announced((sibling, PAGES))
    third = own.path[2]
    store.delete([key for key in sibling.objects if key.startswith(third)])
    for member in own.fleet(store, Deployment(cp=2)):
        report = member.load(own.path)
        assert report.pages == (2 if 2 in member.held.pages else PAGES)
        assert member.pool.holds(range(report.pages))


def test_a_context_rank_chooses_by_the_pages_that_it_owns() -> None:
    own, sibling = worlds(KV, Cut((0, 6), 4))
    store = announced((sibling, PAGES), (own, 3))
    store.delete([key for key in sibling.objects if key.startswith(own.path[2])])
    first, second = own.fleet(store, Deployment(cp=2))
    assert first.load(own.path).pages == 4  # by its own: the sibling has no page 2
    assert first.pool.holds(range(4))
    assert second.load(own.path).pages == PAGES  # by the sibling: its own has no page 3
    assert second.pool.holds(range(PAGES))


class Watched(MemoryStore):
    """A store that counts reads of hint records."""

    looks = 0

    def get(self, spans):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as its parent
        self.looks += any(span.key.startswith("ns_") for span in spans)
        return super().get(spans)


def watched(store: MemoryStore) -> Watched:
    found = Watched()
    found._objects = store._objects
    return found


def test_siblings_may_be_forbidden() -> None:
    own, sibling = worlds(KV, Cut((0, 3, 6), 2))
    store = watched(announced((sibling, PAGES), (own, 2)))
    [(member, _)] = own.load(store, Deployment(), pages=2, siblings=False)
    assert member.client.match(own.path).pages == 2
    assert store.looks == 0


def test_who_announces_later_is_found_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    own, sibling = worlds(KV, Cut((0, 3, 6), 2))
    store = watched(MemoryStore())
    now = 1000.0
    monkeypatch.setattr("unikv.siblings.monotonic", lambda: now)
    member = own.member(store, Deployment(), ONE)
    assert member.load(own.path).pages == 0
    store._objects.update(announced((sibling, 3))._objects)
    now += 29
    assert member.load(own.path).pages == 0
    assert store.looks == 1
    now += 2
    assert member.load(own.path).pages == 3
    assert member.pool.holds(range(3))
    assert store.looks == 2
    more = announced((sibling, 3), (World(KV, Cut((0, 6), 4), PAGES), PAGES))
    store._objects.update(more._objects)
    now += 31
    assert member.load(own.path).pages == PAGES
    assert member.client.match(own.path).pages == PAGES
    assert store.looks == 3


def damage(store: MemoryStore, key: str, at: int) -> None:
    data = bytearray(store._objects[key][0])
    data[at] ^= 0x10
    store._objects[key] = (bytes(data), 0.0)


@pytest.mark.parametrize("layer", [None, 3, 5], ids=["header", "first layer", "last layer"])
@pytest.mark.parametrize("deployment", READERS[:4], ids=str)
def test_a_siblings_damage_ends_the_prefix_and_never_reaches_a_pool(
    deployment: Deployment, layer: int | None
) -> None:
    own, sibling = worlds(KV, Cut((0, 3, 6), 2))
    cell = cells(KV, sibling.cut)[3]  # layers 3..6, heads 2..4
    key = f"{own.path[3]}_{sibling.namespace.digest}_{cell.suffix}"
    body = payload(KV, cell, PAGES, 3)
    start, slab = sibling.objects[key].index(body), len(body) // 3
    ended = 0
    for seat in seats(deployment):
        store = announced((sibling, PAGES), (own, 2))
        damage(store, key, 20 if layer is None else start + (layer - 3) * slab + slab // 2)
        member = own.member(store, deployment, seat)
        report = member.load(own.path)
        sees = layer is None or layer in member.held.layers
        if 3 in member.held.pages and shares(cell, member.held) and sees:
            ended += 1
            assert report.pages == 3
            assert [failure.key for failure in report.failed] == [key]
            assert member.client.match(own.path).pages == 3
        else:
            assert report.pages == PAGES
        assert member.pool.holds(range(report.pages))
    assert ended


def test_after_damage_the_own_grid_is_read_where_it_holds_more() -> None:
    own, sibling = worlds(KV, Cut((0, 3, 6), 2))
    store = announced((sibling, PAGES), (own, 4))
    key = next(k for k in sibling.objects if k.startswith(own.path[1]))
    damage(store, key, 30)
    member = own.member(store, Deployment(), ONE)
    assert member.load(own.path).pages == 1
    assert member.load(own.path).pages == 4
    assert member.pool.holds(range(4))
    member.pool.fill([4])
    assert member.save(own.path).stored == len(cells(KV, own.cut))  # of its own grid alone
    assert member.load(own.path).pages == PAGES
