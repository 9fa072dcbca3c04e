"""Fixtures: an empty store in memory, and a look at one as `unikv inspect` takes it."""

import pytest

from unikv.backends.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()
