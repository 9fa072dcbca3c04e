"""Where loads of bundles end, on the field's reports, by id. Calls here take turns, one at a time.

Of B36 and B40 a client that blocks shows the half that needs no ticket: bytes are packed before
`save` returns, and a save waits for the load of its own client. A store that is put off, and a
block that its engine frees meanwhile, come with tickets; so does B29's early return.
"""

from collections.abc import Callable, Sequence
from threading import Event, Thread

import pytest

from tests.components.bundle_content import Cache, Model
from tests.components.bundle_faults import Fault, spoil
from tests.components.bundle_models import DSA, HYBRID, heads, recurrent
from tests.components.bundles import Party, contents, filled_store, world_of
from tests.components.oracle import Rule
from unikv import Topology, page_hashes
from unikv.backends.memory import MemoryStore
from unikv.coverage import endpoints_to_keep, pages_needed, restorable_pages
from unikv.draft import Drafter
from unikv.errors import PoolError, SpecError, StoreError
from unikv.store import Item, Outcome, Outcomes, Span

ALONE = Topology().rank()


class Meddling(MemoryStore):
    """A store in which something happens between a stat and the get behind it."""

    def __init__(self, found: MemoryStore) -> None:
        super().__init__()
        self._objects = dict(found._objects)
        self.before_get: Callable[[], None] = lambda: None
        self.late: str = "nothing"  # reads of keys with this in them fail
        self.full: str = "nothing"  # puts of keys with this in them fail

    def get(self, spans: Sequence[Span]) -> Outcomes:
        self.before_get()
        found = super().get(spans)
        codes, errors = list(found.codes), dict(found.errors)
        for n, span in enumerate(spans):
            if self.late in span.key:
                codes[n], errors[n] = Outcome.FAILED, StoreError(f"{span.key} is on its way")
        return Outcomes(codes, errors)

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        good = [item for item in items if self.full not in item.key]
        codes = iter(super().put(good, replace=replace).codes)
        errors = {
            n: StoreError(f"no room for {item.key}")
            for n, item in enumerate(items)
            if item not in good
        }
        return Outcomes(
            [Outcome.FAILED if n in errors else next(codes) for n in range(len(items))], errors
        )


def drop(model: Model, store: MemoryStore, name: str, *pages: int) -> None:
    """Remove all chunks of some pages of a component."""
    world = world_of(model)
    for page in pages:
        begins = f"{world.path[page]}_{world.namespaces[name].digest}"
        store.delete([key for key in contents(store) if key.startswith(begins)])


def in_pools(party: Party, **pages: Sequence[int]) -> bool:
    """Tell whether these pages are in the pools, and poison everywhere else."""
    return party.holds(pages) == []


def test_B27_kv_is_not_restored_past_an_indexer_page_that_went_after_the_match() -> None:
    store = filled_store(DSA)
    party = world_of(DSA).party(store, ALONE)
    assert party.client.match(party.world.path).pages == 6
    drop(DSA, store, "indexer", 4)
    report = party.load()
    assert report.pages == 4
    assert in_pools(party, target=range(4), indexer=range(4))


def test_B27_kv_is_not_restored_past_a_state_that_went_while_the_load_ran() -> None:
    store = Meddling(filled_store(HYBRID))
    store.before_get = lambda: drop(HYBRID, store, "state", 3, 5)
    party = world_of(HYBRID).party(store, ALONE)
    report = party.load()  # a stat found states at 4 and 6
    assert report.pages == 5
    assert in_pools(party, target=range(5), state=(4,))


def test_B28_a_reader_that_needs_an_indexer_finds_nothing_where_none_was_stored() -> None:
    store = filled_store(DSA)
    drop(DSA, store, "indexer", *range(6))
    party = world_of(DSA).party(store, ALONE)
    assert (party.client.match(party.world.path).pages, party.load().pages) == (0, 0)
    assert in_pools(party, target=(), indexer=())


def test_B28_a_writer_that_brings_no_slots_of_a_component_is_refused() -> None:
    party = world_of(HYBRID).party(MemoryStore(), ALONE)
    slots = party.slots()
    del slots["state"]
    for call in (party.client.save, party.client.load):
        with pytest.raises(PoolError, match=r"slots for components \['target'\]: want \['state', "):
            call(party.world.path, slots)
    assert contents(party.client._store) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DSA.caches)
def test_B29_a_page_counts_when_all_of_its_components_are_in(name: str) -> None:
    store = Meddling(filled_store(DSA))
    party = world_of(DSA).party(store, ALONE)
    for page in range(6):
        store.late = f"{party.world.path[page]}_{party.world.namespaces[name].digest}"
        report = party.poison().load()
        assert report.pages == page
        assert "is on its way" in str(report.stopped)
        assert in_pools(party, target=range(page), indexer=range(page))


TWO_KINDS = Model(
    {"target": Cache(heads(range(1), 16)), "state": Cache(recurrent([1], 16), Rule("state"))},
    writer="tp1",
    readers=(),
    pages=4,
)


@pytest.mark.parametrize(
    ("missing", "answer"),
    [
        pytest.param([2], 2, id="KV of tokens 32..48 is not stored"),
        pytest.param([], 3, id="KV is stored by pages of 16"),
    ],
)
def test_B34_a_state_at_48_needs_the_kv_up_to_48(missing: list[int], answer: int) -> None:
    store = filled_store(TWO_KINDS)
    drop(TWO_KINDS, store, "target", *missing)
    drop(TWO_KINDS, store, "state", 0, 3)  # states at 32 and 48
    party = world_of(TWO_KINDS).party(store, ALONE)
    assert party.client.match(party.world.path).pages == answer
    assert party.load().pages == answer
    assert in_pools(party, target=range(answer), state=(answer - 1,))


def test_B36_what_a_slot_holds_after_the_save_is_not_stored() -> None:
    store = MemoryStore()
    party = world_of(HYBRID).party(store, ALONE).fill()
    party.save()
    party.poison()  # its blocks go to another request
    assert contents(store) == contents(filled_store(HYBRID))


def test_B36_a_page_whose_slots_were_given_away_is_not_stored() -> None:
    store = MemoryStore()
    party = world_of(HYBRID).party(store, ALONE).fill()
    slots = party.slots()
    slots["state"][3] = -1
    report = party.save(slots)
    assert report.components["state"].unheld == 1
    assert party.client.match(party.world.path[:4]).pages == 3


@pytest.mark.parametrize(("tokens", "pages"), [(64, 3), (1, 0), (16, 0), (17, 1)])
def test_B38_a_full_hit_less_one_token_loads_whole_pages(tokens: int, pages: int) -> None:
    party = world_of(TWO_KINDS).party(filled_store(TWO_KINDS), ALONE)
    some = slice(restorable_pages(tokens, 16))
    report = party.client.load(party.world.path[some], party.slots(some))
    assert (report.pages, report.stopped) == (pages, None)
    assert in_pools(party, target=range(pages), state=range(pages)[-1:])


def test_B39_pages_behind_a_local_prefix_go_to_their_own_slots() -> None:
    party = world_of(HYBRID).party(filled_store(HYBRID), ALONE)
    report = party.client.load(party.world.path[3:5], party.slots(slice(3, 5)))
    assert report.pages == 2
    assert in_pools(party, target=(3, 4), state=(4,))


def test_B40_a_save_waits_for_the_load_of_its_slots() -> None:
    store, reading, go_on = Meddling(filled_store(DSA)), Event(), Event()

    def pause() -> None:
        if not reading.is_set():
            reading.set()
            assert go_on.wait(20)

    party = world_of(DSA).party(store, ALONE, siblings=False)
    store.before_get = pause
    other = page_hashes(range(900, 948), 8)  # keys of what is saved from the same slots
    load = Thread(target=party.load)
    save = Thread(target=party.client.save, args=(other, party.slots()))
    load.start()
    assert reading.wait(20)
    save.start()
    save.join(0.05)
    assert not any(key.startswith(other[0]) for key in contents(store))
    go_on.set()
    load.join(20)
    save.join(20)
    copy = world_of(DSA).party(store, ALONE, seed=3)
    assert copy.client.load(other, copy.slots()).pages == 6
    assert in_pools(copy, target=range(6), indexer=range(6))


@pytest.mark.parametrize("name", DSA.caches)
def test_B63_no_more_is_told_than_was_loaded(name: str) -> None:
    world, store = world_of(DSA), filled_store(DSA)
    party = world.party(store, ALONE)
    spoil(world, store, Fault(name, 0, "flipped"))
    found, report = (
        party.client.match(world.path[:1]),
        party.client.load(world.path[:1], party.slots(slice(1))),
    )
    assert (found.pages, report.pages) == (1, 0)
    assert in_pools(party, target=(), indexer=())


def windowed(tokens: int, retained: int = 0, pages: int = 7) -> Model:
    return Model(
        {
            "target": Cache(heads(range(1, 2), 16)),
            "swa": Cache(heads(range(1), 16), Rule("window", tokens, retained)),
        },
        writer="tp1",
        readers=(),
        pages=pages,
    )


FOUR_PAGES = windowed(64)


@pytest.mark.parametrize(
    ("swa", "pages", "answer"),
    [
        pytest.param({2, 3}, 4, 0, id="half a window"),
        pytest.param({0, 1, 2, 3}, 4, 4, id="a whole window"),
        pytest.param({1, 2, 3, 4}, 7, 5, id="an earlier whole window"),
    ],
)
def test_B64_a_window_is_whole_or_no_endpoint(swa: set[int], pages: int, answer: int) -> None:
    store = filled_store(FOUR_PAGES)
    drop(FOUR_PAGES, store, "swa", *({*range(7)} - swa))
    party = world_of(FOUR_PAGES).party(store, ALONE)
    some = slice(pages)
    report = party.client.load(party.world.path[some], party.slots(some))
    assert (report.pages, report.stopped is None) == (answer, answer == pages)
    assert in_pools(party, target=range(answer), swa=range(max(0, answer - 4), answer))
    assert party.client.load(party.world.path[some], party.slots(some)).pages == answer


@pytest.mark.parametrize("name", ["target", "state"])
def test_B65_an_object_that_a_store_refuses_costs_itself_alone(name: str) -> None:
    store = Meddling(MemoryStore())
    party = world_of(HYBRID).party(store, ALONE).fill()
    digest = party.world.namespaces[name].digest
    store.full = f"{party.world.path[2]}_{digest}"
    report = party.client.save(party.world.path, party.slots())
    assert {(failure.page, failure.key[65:97]) for failure in report.failed} == {(2, digest)}
    assert not report.ok
    assert party.client.match(party.world.path).pages == (2 if name == "target" else 6)
    store.full = "nothing"
    assert party.save().stored == len(report.failed)
    assert contents(store) == contents(filled_store(HYBRID))


def test_B78_tokens_retained_for_a_drafter_are_stored_and_restored() -> None:
    model = windowed(32, 3, pages=4)
    store = MemoryStore()
    world_of(model).party(store, ALONE).fill().save(endpoints={4})
    party = world_of(model).party(store, ALONE, seed=2)
    assert party.load().pages == 4
    assert in_pools(party, target=range(4), swa=(1, 2, 3))
    drop(model, store, "swa", 1)  # as a window that knows of no drafter would store it
    assert party.poison().load().pages == 0


def test_B78_a_window_stored_for_fewer_tokens_than_a_drafter_retains_is_refused() -> None:
    model = windowed(32, 2)
    drafters = (Drafter("mtp", (), retained=3),)
    with pytest.raises(SpecError, match=r"retains 3 tokens before it: want Window\(tokens=32, ret"):
        world_of(model).party(MemoryStore(), ALONE, drafters=drafters)


TWO_PAGES = windowed(32, pages=4)


@pytest.mark.parametrize(
    ("late", "now"), [((2, 3), 2), ((1, 2, 3), 1)], ids=["hit hit miss pending", "hit pending"]
)
def test_B79_a_pending_page_keeps_no_ready_prefix_back(late: tuple[int, ...], now: int) -> None:
    store = filled_store(TWO_PAGES)
    drop(TWO_PAGES, store, "swa", *late)
    party = world_of(TWO_PAGES).party(store, ALONE)
    assert party.load().pages == now
    pending = late[-1] if now == 2 else late[0]
    whole = filled_store(TWO_PAGES)
    key = f"{party.world.path[pending]}_{party.world.namespaces['swa'].digest}"
    store._objects.update({k: v for k, v in whole._objects.items() if k.startswith(key)})
    assert party.poison().load().pages == 2


def test_B80_the_same_prompt_is_found_one_page_short_and_a_longer_one_whole() -> None:
    store = MemoryStore()
    world = world_of(TWO_PAGES)
    world.party(store, ALONE).fill().save(endpoints=endpoints_to_keep(64, 16))
    for asked in (restorable_pages(64, 16), 4):
        party = world.party(store, ALONE, seed=asked)
        some = slice(asked)
        assert party.client.match(world.path[some]).pages == asked
        assert party.client.load(world.path[some], party.slots(some)).pages == asked
        window = pages_needed(TWO_PAGES.caches["swa"].coverage, asked, 16)
        assert in_pools(party, target=range(asked), swa=window)
