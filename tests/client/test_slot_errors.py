"""What a newcomer gives for slots at first: each error says what was given and what is wanted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from unikv import Client, KVSpec, Namespace, Topology, page_hashes
from unikv.backends.memory import MemoryStore
from unikv.component import Component
from unikv.errors import PoolError
from unikv.paged import PagedCache

SPEC = KVSpec.mha(layers=2, kv_heads=2, head_dim=8, dtype="bfloat16", page_tokens=4)
NAMESPACE = Namespace(model="m", weights="unversioned", spec=SPEC, rope="none")
PAGES = page_hashes(range(16), 4)
GOOD = torch.arange(16).view(4, 4)


def slot_pool() -> PagedCache:
    return PagedCache.slots(*([torch.zeros(64, 2, 8).bfloat16() for _ in "01"] for _ in "kv"))


def block_pool() -> PagedCache:
    kv = [torch.zeros(2, 16, 4, 2, 8).bfloat16() for _ in range(2)]
    return PagedCache.blocks(kv, order="NHD")


def client(components: Any, pool: PagedCache | None = None) -> Client:
    return Client(MemoryStore(), components, Topology().rank(), pool)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "float": (GOOD.float, "slots of torch.float32 and shape (4, 4)"),
    "int16": (lambda: GOOD.to(torch.int16), "slots of torch.int16 and shape (4, 4)"),
    "mask": (lambda: GOOD > 3, "slots of torch.bool and shape (4, 4)"),
    "1-D": (GOOD.flatten, "slots of torch.int64 and shape (16,)"),
    "1-D list": (lambda: list(range(16)), "slots of torch.int64 and shape (16,)"),
    "ragged list": (lambda: [[1, 2], [3]], "no table of whole numbers"),
    "list of tensors": (lambda: list(GOOD), "no table of whole numbers"),
    "nothing": (lambda: None, "no table of whole numbers"),
    "wide": (lambda: torch.arange(32).view(4, 8), "slots of shape (4, 8)"),
    "a block a page": (lambda: torch.arange(4).view(4, 1), "slots of shape (4, 1)"),
    "beyond the pool": (lambda: GOOD + 60, "page 1, entry 0: slot 64"),
    "below the pool": (lambda: GOOD.where(GOOD != 1, -2), "page 0, entry 1: slot -2"),
    "a token not held": (lambda: GOOD - 1, "page 0 of component 'target' has slots and -1"),
    "a page not held": (lambda: torch.full((4, 4), -1), "page 0 has no slots"),
    "fewer pages": (lambda: GOOD[:3], "4 pages, but slots of component 'target' for 3"),
    "one number": (lambda: 3, "slot 3 for all pages of component 'target'"),
    "a slot twice": (lambda: GOOD * 0, "page 0 names 0 twice"),
    "another device": (lambda: GOOD.to("meta"), "slots on device meta: want them on cpu"),
}
WANTED = (
    "(slots of component 'target' for 4 pages of 4 tokens: int64 or int32, shape (4, 4), each a "
    "slot from 0 to 63; -1 stands for a page that is not held, and this component must hold every "
    "page)"
)


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("call", ["save", "load", "save_async", "load_async"])
def test_an_error_says_what_was_given_and_what_is_wanted(name: str, call: str) -> None:
    slots, given = MISTAKES[name]
    with client(NAMESPACE, slot_pool()) as one, pytest.raises(PoolError) as caught:
        getattr(one, call)(PAGES, slots())
    assert given in str(caught.value)
    assert str(caught.value).endswith(WANTED)


def test_slot_zero_is_a_slot() -> None:
    with client(NAMESPACE, slot_pool()) as one:
        assert one.save(PAGES, GOOD).ok
        assert one.load(PAGES, GOOD.tolist()).pages == 4


def test_pages_of_another_size_are_told_with_the_size_that_is_wanted() -> None:
    told = pytest.raises(PoolError, match=r"2 pages, but slots .* for 4 .*2 pages of 4 tokens")
    with client(NAMESPACE, slot_pool()) as one, told:
        one.save(page_hashes(range(16), 8), GOOD)


def test_a_pool_of_blocks_takes_slots_and_blocks_and_says_so() -> None:
    wanted = "shape (4, 4), each a slot from 0 to 63, or shape (4, 1), each a block from 0 to 15;"
    with client(NAMESPACE, block_pool()) as one:
        assert one.save(PAGES, GOOD).ok
        assert one.load(PAGES, torch.arange(4).view(4, 1)).pages == 4
        for slots in (GOOD + 1, GOOD + 60, GOOD[:, :2], torch.arange(4).view(4, 1) + 14):
            with pytest.raises(PoolError) as caught:
                one.save(PAGES, slots)
            assert wanted in str(caught.value)


def test_the_slots_of_a_rank_that_owns_pages_in_turn_are_logical() -> None:
    rank = Topology(cp=2).rank(cp=1)
    with Client(MemoryStore(), NAMESPACE, rank, slot_pool()) as one:
        assert one.save(PAGES, GOOD + 112).ok
        with pytest.raises(PoolError, match="each a slot from 0 to 127"):
            one.save(PAGES, GOOD + 120)


def test_a_component_that_may_lack_pages_says_how() -> None:
    other = Namespace(model="m", weights="unversioned", spec=SPEC, rope="none", component="indexer")
    parts = {
        "target": Component(NAMESPACE, slot_pool()),
        "indexer": Component(other, slot_pool(), need="optional"),
    }
    with client(parts) as one:
        slots = GOOD.clone()
        slots[2] = -1
        assert one.save(PAGES, {"target": GOOD, "indexer": slots}).unheld == 1
        with pytest.raises(
            PoolError, match=r"'indexer' .*-1 throughout a page stands for one that"
        ):
            one.save(PAGES, {"target": GOOD, "indexer": GOOD - 1})


def test_a_rank_without_layers_of_a_component_is_told_no_range() -> None:
    few = KVSpec.mha(
        layers=1, kv_heads=2, head_dim=8, dtype="bfloat16", page_tokens=4, layer_ids=[0]
    )
    other = Namespace(model="m", weights="unversioned", spec=few, rope="none", component="indexer")
    both = Namespace(model="m", weights="unversioned", spec=SPEC, rope="none", layers_per_chunk=1)
    kv = ([torch.zeros(64, 2, 8).bfloat16()] for _ in "kv")
    parts = {
        "target": Component(both, PagedCache.slots(*kv)),
        "indexer": Component(other, PagedCache.slots([], [], dtype="bfloat16"), need="optional"),
    }
    rank = Topology(pp=2, pp_layers=(1, 1)).rank(pp=1)
    told = pytest.raises(PoolError, match=r"int64 or int32, shape \(4, 4\); -1 throughout")
    with Client(MemoryStore(), parts, rank) as one, told:
        one.save(PAGES, {"target": GOOD, "indexer": GOOD[:3]})


def test_a_pool_whose_axes_are_swapped_says_so() -> None:
    kv = [torch.zeros(2, 16, 2, 4, 8).bfloat16() for _ in range(2)]
    with pytest.raises(PoolError, match=r"pool of 4 heads: want 2.*2 tokens: want the other order"):
        client(NAMESPACE, PagedCache.blocks(kv, order="NHD"))
    with pytest.raises(PoolError, match=r"pool of 4 heads: want 2, the rank's$"):
        client(
            NAMESPACE,
            PagedCache.slots(*([torch.zeros(9, 4, 8).bfloat16() for _ in "01"] for _ in "kv")),
        )


@pytest.mark.parametrize("pool", [[torch.zeros(4, 2, 8)], torch.zeros(4, 2, 8), "pool"], ids=type)
def test_a_pool_that_is_none_is_refused_by_its_type(pool: Any) -> None:
    with pytest.raises(PoolError, match=f"is a {type(pool).__name__}: want a PagedCache"):
        client(NAMESPACE, pool)
