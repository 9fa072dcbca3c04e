"""Bundle saves: which pages of each component are stored, and what is refused before any is."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.components import oracle
from tests.components.bundle_content import Model
from tests.components.bundle_models import EAGLE, GEMMA, HYBRID, MODELS, PACKED, SIDECARS
from tests.components.bundles import POISON, Party, World, contents, world_of
from unikv import Topology
from unikv.backends.memory import MemoryStore
from unikv.coverage import Window, endpoints_to_keep, pages_to_store, storable_pages
from unikv.draft import lookahead
from unikv.errors import PoolError, SpecError

ALONE = Topology().rank()


def stored(world: World, store: MemoryStore) -> dict[str, set[int]]:
    """Return the pages that a store holds all chunks of, by component."""
    keys = contents(store)
    found = {}
    for name, namespace in world.namespaces.items():
        held = [
            {key[98:] for key in keys if key.startswith(f"{page}_{namespace.digest}")}
            for page in world.path
        ]
        most = max(held, key=len)
        found[name] = {page for page, suffixes in enumerate(held) if suffixes == most and most}
    return found


def filled(model: Model, store: MemoryStore, **options: Any) -> Party:
    return world_of(model).party(store, ALONE, **options).fill()


def needed(model: Model, endpoints: Iterable[int]) -> dict[str, set[int]]:
    """Return what the oracle wants stored for endpoints, and all pages where all are needed."""
    return {
        name: set(range(model.pages))
        if one.rule.kind == "every"
        else set().union(*(oracle.needed(one.rule, e, model.page_tokens) for e in endpoints))
        for name, one in model.caches.items()
    }


@given(st.data(), st.sampled_from([GEMMA, HYBRID, SIDECARS, PACKED]))
def test_endpoints_store_what_they_need_and_no_page_more(data: st.DataObject, model: Model) -> None:
    wanted = data.draw(st.sets(st.integers(0, model.pages), min_size=1, max_size=3))
    store = MemoryStore()
    report = filled(model, store).save(endpoints=wanted)
    assert stored(world_of(model), store) == needed(model, wanted)
    assert report.unheld == 0
    reader = world_of(model).party(store, ALONE, seed=5)
    for end in wanted:
        pages = world_of(model).path[:end]
        assert reader.client.match(pages).pages == end
        assert reader.client.load(pages, reader.slots(slice(end))).pages == end


def test_endpoints_store_what_pages_to_store_says() -> None:
    store = MemoryStore()
    filled(GEMMA, store).save(endpoints={17, 19})
    planned = pages_to_store(Window(1024), {17, 19}, GEMMA.pages, 64)
    assert stored(world_of(GEMMA), store)["swa"] == set(planned) == set(range(1, 19))


@pytest.mark.parametrize("wrong", [-1, 7, 100])
@pytest.mark.parametrize("model", [HYBRID, EAGLE], ids=["with state", "without"])
def test_an_endpoint_outside_the_pages_is_refused_and_nothing_is_stored(
    model: Model, wrong: int
) -> None:
    store = MemoryStore()
    with pytest.raises(SpecError, match=f"endpoint {wrong}: want 0 to 6"):
        filled(model, store).save(endpoints={3, wrong})
    assert contents(store) == {}


def test_pages_without_slots_are_skipped_and_counted() -> None:
    store = MemoryStore()
    party = filled(SIDECARS, store)
    slots = party.slots()
    slots["swa"][:3] = -1
    slots["memory"][[0, 1, 2, 4]] = -1
    report = party.client.save(party.world.path, slots)
    assert stored(party.world, store) == {
        "target": set(range(7)),
        "swa": {3, 4, 5, 6},
        "draft": {3, 4, 5, 6},  # its slots follow
        "memory": {3, 5, 6},
    }
    parts = report.components
    assert {name: parts[name].unheld for name in parts} == {
        "target": 0,
        "swa": 3,
        "draft": 3,
        "memory": 4,
    }
    assert report.unheld == 10


def test_pages_that_no_endpoint_needs_do_not_count_as_without_slots() -> None:
    party = filled(SIDECARS, MemoryStore())
    slots = party.slots()
    slots["swa"][:4] = -1
    slots["memory"][:6] = -1
    assert party.client.save(party.world.path, slots, endpoints={7}).unheld == 0
    slots["swa"][4] = -1  # in the window of 7: the endpoint cannot be stored, and it shows
    assert party.client.save(party.world.path, slots, endpoints={7}).unheld == 2


def test_B32_a_null_slot_is_never_stored() -> None:
    store = MemoryStore()
    party = filled(HYBRID, store, fields={"null_slot": {"state": 4}})
    slots = party.slots()
    slots["state"] = torch.tensor([[7], [4], [1], [4], [0], [5]])
    for tensor in party.memory["state"]:
        tensor[:, 4] = 0  # the null block
    report = party.client.save(party.world.path, slots)
    assert stored(party.world, store)["state"] == {0, 2, 4, 5}
    assert report.components["state"].unheld == 2
    for pages, end in ((2, 1), (4, 3), (6, 6)):  # boundaries 2 and 4 are no endpoints
        assert party.client.match(party.world.path[:pages]).pages == end


def test_B32_what_follows_a_null_slot_is_not_stored_either() -> None:
    store = MemoryStore()
    table = filled(SIDECARS, store).tables["swa"]
    null = next(slot for slot in range(80) if slot not in table)
    party = filled(SIDECARS, store, fields={"null_slot": {"swa": null}})
    slots = party.slots()
    slots["swa"][1] = null
    report = party.client.save(party.world.path, slots)
    there = stored(party.world, store)
    assert there["swa"] == there["draft"] == {0, 2, 3, 4, 5, 6}
    assert report.components["draft"].unheld == 1


def test_B32_a_null_slot_is_never_loaded_into() -> None:
    store = MemoryStore()
    filled(HYBRID, store).save()
    party = world_of(HYBRID).party(store, ALONE, fields={"null_slot": {"state": 4}})
    with pytest.raises(PoolError, match="names slot 4, the null slot: want a slot to load into"):
        party.load(state=torch.tensor([[4]] * 6))
    with pytest.raises(PoolError, match="null slot"):
        party.load(state=4)
    assert party.holds(dict.fromkeys(HYBRID.caches, ())) == []


@pytest.mark.parametrize("name", ["target", "draft"])
def test_a_required_component_of_every_page_without_slots_is_refused(name: str) -> None:
    store = MemoryStore()
    party = filled(PACKED, store, fields={"source": {"draft": None}, "packed": {"draft": False}})
    slots = party.slots() | {"draft": torch.from_numpy(party.tables["draft"].copy())}
    slots[name][2] = -1
    for call in (party.client.save, party.client.load):
        with pytest.raises(PoolError, match=f"page 2 has no slots in component '{name}': want"):
            call(party.world.path, slots)
    assert contents(store) == {}


def test_a_page_with_some_slots_and_some_minus_ones_is_refused() -> None:
    party = filled(SIDECARS, MemoryStore())
    slots = party.slots()
    slots["swa"][2, 5] = -1
    with pytest.raises(PoolError, match="page 2 of component 'swa' has slots and -1: want all"):
        party.client.save(party.world.path, slots)


def test_one_slot_stands_for_all_states_of_a_load() -> None:
    store = MemoryStore()
    filled(HYBRID, store).save()
    party = world_of(HYBRID).party(store, ALONE)
    spare = next(slot for slot in range(9) if slot not in party.tables["state"])
    assert party.load(state=spare).pages == 6
    party.tables["state"][5] = spare
    assert party.holds({"target": range(6), "state": (5,)}) == []


@pytest.mark.parametrize("state", [3, torch.full((6, 1), 3)], ids=["a number", "a table"])
def test_one_slot_is_never_stored_as_the_state_of_several_pages(state: Any) -> None:
    store = MemoryStore()
    party = filled(HYBRID, store)
    for endpoints in (None, {3, 6}):
        with pytest.raises(PoolError, match=r"slot 3 as the state of \d pages: want the slot of"):
            party.save(endpoints=endpoints, slots=party.slots(state=state))
    assert contents(store) == {}
    party.save(endpoints={6}, slots=party.slots(state=state))
    assert stored(party.world, store)["state"] == {5}


def test_one_slot_for_all_pages_is_refused_where_each_has_its_own() -> None:
    party = filled(HYBRID, MemoryStore())
    for call in (party.client.save, party.client.load):
        with pytest.raises(PoolError, match="slot 3 for all pages of component 'target': want a"):
            call(party.world.path, party.slots(target=3))


@pytest.mark.parametrize("drafted", [0, 1, 3])
@pytest.mark.parametrize("accepted", [7, 8, 9, 15, 16, 40])
def test_a_save_amid_speculation_stores_accepted_tokens_alone(accepted: int, drafted: int) -> None:
    model, store, whole = SIDECARS, MemoryStore(), MemoryStore()
    world = world_of(model)
    filled(model, whole).save()
    party = filled(model, store)
    ahead = min(drafted, lookahead(model.drafters))
    for name in ("target", "swa", "draft"):  # tokens that nobody accepted lie behind the others
        slots = party.tables[name].flatten()[accepted : accepted + ahead]
        for tensor in party.memory[name]:
            tensor[:, slots] = POISON
    pages = storable_pages(accepted + ahead, model.page_tokens, lookahead(model.drafters))
    keep = endpoints_to_keep(pages * model.page_tokens, model.page_tokens)
    party.client.save(world.path[:pages], party.slots(slice(pages)), endpoints=keep)
    assert stored(world, store)["target"] == set(range(pages))
    assert pages * model.page_tokens <= accepted
    assert contents(store).items() <= contents(whole).items()


@pytest.mark.parametrize("more", [0, 1, 8], ids="+{} tokens".format)
@pytest.mark.parametrize("chunks", [1, 2, 3], ids="{} chunks".format)
def test_B81_saves_of_a_chunked_prefill_store_every_whole_page(chunks: int, more: int) -> None:
    model, store = MODELS["hybrid: recurrent"], MemoryStore()
    world, party = world_of(model), filled(model, store)
    done = 0
    lengths = [16 * n for n in range(1, chunks + 1)]
    for tokens in [*lengths, min(lengths[-1] + more, 48)]:
        pages = storable_pages(tokens, 8)
        if pages > done:
            some = slice(done, pages)
            parent = world.path[some]
            party.client.save(parent, party.slots(some), start=done, endpoints={pages - done})
        done = max(done, pages)
    assert stored(world, store)["target"] == set(range(done))
    ends = {2 * n - 1 for n in range(1, chunks + 1)} | {done - 1}
    assert stored(world, store)["state"] == ends
