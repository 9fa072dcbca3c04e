"""Fixtures of the identity tests: an empty store."""

import pytest

from tests.identity.samples import DictStore


@pytest.fixture
def store() -> DictStore:
    return DictStore()
