"""A store that clients wrote: what inspect says of it, through every rank of a topology."""

from tests.client.world import World
from unikv import KVSpec, Topology
from unikv.backends.memory import MemoryStore
from unikv.tools.one_page import inspect_page
from unikv.tools.survey import survey


def _world() -> World:
    spec = KVSpec.mha(layers=6, kv_heads=4, head_dim=3, v_head_dim=5, dtype="int32", page_tokens=4)
    return World(spec, options={"layer_cuts": (0, 2, 4, 6), "heads_per_chunk": 1})


def test_what_all_ranks_saved_is_complete_verified_and_labelled(store: MemoryStore) -> None:
    world = _world()
    world.save(store, Topology(tp=2, pp=3))
    found = survey(store, "memory://", verify=True)
    (content,) = found.namespaces
    assert (content.namespace.model, content.namespace.digest) == ("world", world.namespace.digest)
    assert (content.pages, content.complete_pages) == (5, 5)
    assert content.verified_objects == 5 * 12
    assert found.ok


def test_the_pages_of_a_sequence_name_their_parents(store: MemoryStore) -> None:
    world = _world()
    world.save(store, Topology())
    for index, page in enumerate(world.pages):
        (content,) = inspect_page(store, "memory://", page).namespaces
        assert content.page_indices == (index,)
        assert content.parents == tuple(world.pages[max(0, index - 1) : index])


def test_one_rank_alone_leaves_its_part_of_every_page(store: MemoryStore) -> None:
    world = _world()
    side = world.side(store, Topology(tp=4).rank(tp=3), filled=True)
    side.client.save(world.pages, side.slots)
    (content,) = inspect_page(store, "memory://", world.pages[0]).namespaces
    there = {chunk.chunk for chunk in content.chunks if chunk.state == "ok"}
    assert there == {"L0-2_H3", "L2-4_H3", "L4-6_H3"}
