"""Fixtures: two small worlds, one with heads and one with latents, and an empty store."""

import pytest

from tests.client.world import World
from unikv import KVSpec
from unikv.backends.memory import MemoryStore


@pytest.fixture
def world() -> World:
    spec = KVSpec.mha(layers=6, kv_heads=4, head_dim=3, v_head_dim=5, dtype="int32", page_tokens=4)
    return World(spec, options={"layer_cuts": (0, 2, 4, 6), "heads_per_chunk": 1})


@pytest.fixture
def latents() -> World:
    spec = KVSpec.mla(layers=6, dim=10, dtype="int32", page_tokens=4)
    return World(spec, options={"layers_per_chunk": 2})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()
