"""Regions by layer name: one allocation whose layers have different numbers of buffers.

Source of the trap: 003 of the project's seeds. A buffer's place was taken from layer 0 for all
layers, though only the first ones carry a draft's buffer beside the target's.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.components.bundle_content import Bytes, share
from tests.components.bundle_models import PACKED
from tests.components.bundles import GUARDS, POISON, contents, filled_store, world_of
from unikv import Client, PagedCache, Topology
from unikv.backends.memory import MemoryStore
from unikv.draft import pack_layers
from unikv.errors import PoolError
from unikv.regions import Region

ALONE = Topology().rank()
TARGET = [f"model.layers.{n}.attn" for n in range(4)]
DRAFT = [f"mtp.{n}.attn" for n in range(2)]
BLOCKS, TOKENS, ROW = PACKED.pages + GUARDS, 8, 12
GAP = 20  # bytes behind each buffer that are nobody's


class Allocation(NamedTuple):
    """One buffer of blocks, each with all layers, and where each layer's buffer lies in it."""

    memory: Bytes
    regions: dict[str, list[Region]]


def allocate() -> Allocation:
    listed = [*TARGET, *DRAFT]  # as a pool lists them: the draft's behind the target's
    carried = pack_layers(dict(enumerate(range(4))), 2)
    order = [listed[buffer] for layer in sorted(carried) for buffer in carried[layer]]
    assert [len(carried[layer]) for layer in sorted(carried)] == [2, 2, 1, 1]
    block = len(order) * (TOKENS * ROW + GAP)
    regions = {
        name: [Region(n * (TOKENS * ROW + GAP), (BLOCKS, TOKENS, 1, ROW), (block, ROW, ROW))]
        for n, name in enumerate(order)
    }
    return Allocation(np.full(BLOCKS * block, POISON, dtype=np.uint8), regions)


def fill(found: Allocation, pages: int = PACKED.pages) -> Allocation:
    """Write page p's bytes into block p + 2, byte by byte."""
    party = world_of(PACKED).party(MemoryStore(), ALONE)
    for component, names in (("target", TARGET), ("draft", DRAFT)):
        (mine,) = share(PACKED, component, party.held[component])
        for layer, name in enumerate(names):
            (region,) = found.regions[name]
            for page in range(pages):
                at = region.offset + (page + 2) * region.strides[0]
                found.memory[at : at + TOKENS * ROW] = mine[layer, page].reshape(-1)
    return found


def pools(found: Allocation) -> dict[str, PagedCache]:
    buffer = torch.from_numpy(found.memory)
    return {
        name: PagedCache.packed(buffer, found.regions, dtype="bfloat16", names=names)
        for name, names in (("target", TARGET), ("draft", DRAFT))
    }


def client(store: MemoryStore, found: Allocation) -> Client:
    world = world_of(PACKED)
    return Client(store, world.components(pools(found)), ALONE, drafters=PACKED.drafters)


SLOTS = torch.arange(2, 2 + PACKED.pages)[:, None]  # a table of blocks


def test_layers_with_and_without_a_drafts_buffer_store_what_plain_pools_store() -> None:
    store = MemoryStore()
    assert client(store, fill(allocate())).save(world_of(PACKED).path, SLOTS).ok
    assert contents(store) == contents(filled_store(PACKED))


@pytest.mark.parametrize("pages", [PACKED.pages, 4])
def test_they_restore_each_layers_own_bytes_and_none_beside(pages: int) -> None:
    found = allocate()
    path = world_of(PACKED).path[:pages]
    report = client(filled_store(PACKED), found).load(path, SLOTS[:pages])
    assert report.pages == pages
    assert np.array_equal(found.memory, fill(allocate(), pages).memory)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([*TARGET[:3], "model.layers.3"], r"no regions for \['model.layers.3'\]: want names of"),
        ([*TARGET[:3], TARGET[0]], "want each layer of the pool once"),
        (None, "want each layer of the pool once"),
    ],
    ids=["misnamed", "twice", "no names"],
)
def test_a_layer_that_is_not_named_right_fails_loudly(wrong: list[str] | None, says: str) -> None:
    found = allocate()
    with pytest.raises(PoolError, match=says):
        PagedCache.packed(
            torch.from_numpy(found.memory), found.regions, dtype="bfloat16", names=wrong
        )


def test_a_layer_without_regions_fails_loudly() -> None:
    found = allocate()
    del found.regions[TARGET[2]]
    with pytest.raises(PoolError, match=r"no regions for \['model.layers.2.attn'\]"):
        pools(found)


def test_names_of_regions_that_have_none_are_refused() -> None:
    found = allocate()
    unnamed = [found.regions[name] for name in TARGET]
    with pytest.raises(PoolError, match="of regions without names: want a mapping"):
        PagedCache.packed(torch.from_numpy(found.memory), unnamed, dtype="bfloat16", names=TARGET)


def test_a_pool_of_a_layer_too_few_is_refused() -> None:
    found, world = allocate(), world_of(PACKED)
    some = pools(found)
    some["target"] = PagedCache.packed(
        torch.from_numpy(found.memory), found.regions, dtype="bfloat16", names=TARGET[:3]
    )
    with pytest.raises(PoolError, match="pool of 3 layers: want 4, the rank's"):
        Client(MemoryStore(), world.components(some), ALONE, drafters=PACKED.drafters)


def test_every_layer_at_layer_0s_offset_is_refused() -> None:
    found = allocate()
    found.regions[TARGET[1]] = found.regions[TARGET[0]]
    with pytest.raises(PoolError, match="layer 0, part 0 and layer 1, part 0 share memory"):
        pools(found)


def test_a_draft_at_the_place_of_its_target_is_refused() -> None:
    found = allocate()
    found.regions[DRAFT[0]] = found.regions[TARGET[0]]
    with pytest.raises(PoolError, match=r"'target' and 'draft' share memory and both name block"):
        client(MemoryStore(), found).load(world_of(PACKED).path, SLOTS)
