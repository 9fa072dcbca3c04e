"""Fixtures: a lab for each way of doing I/O, in which nothing may be left behind."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

from tests.io_path.lab import Lab, nothing_left

PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a test passed: the traceback of one that failed keeps its client alive."""
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(params=["threads", "process"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    yield from _lab(request, tmp_path, request.param)


@pytest.fixture
def threads_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    yield from _lab(request, tmp_path, "threads")


@pytest.fixture
def process_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    yield from _lab(request, tmp_path, "process")


def _lab(request: pytest.FixtureRequest, root: Path, io: str) -> Iterator[Lab]:
    torch.set_num_threads(1)
    with nothing_left(unless=lambda: not request.node.stash.get(PASSED, False)):
        lab = Lab(root, io)
        yield lab
        lab.close()
        del lab
