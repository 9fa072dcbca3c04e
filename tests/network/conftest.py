"""Fixtures: real servers, each started once, and a lab on one of them that is a test's own."""

from collections.abc import Iterator
from itertools import count

import pytest
import torch

from tests.network.lab import Lab
from tests.network.place import MOONCAKE, REDIS, S3, Place
from tests.network.places import running_place

_NUMBERS = count()


@pytest.fixture(scope="session", params=[REDIS, S3, MOONCAKE])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    torch.set_num_threads(1)
    with (
        pytest.MonkeyPatch.context() as environment,
        running_place(request.param, tmp_path_factory.mktemp("place"), environment) as place,
    ):
        yield place


@pytest.fixture
def lab(place: Place) -> Iterator[Lab]:
    lab = Lab(place, f"test{next(_NUMBERS)}")
    yield lab
    lab.close()
    if lab.hurt:  # the test failed: the next ones shall not
        place.kill()
        place.revive()
