"""Fixtures: one model load and one prefill for all tests of the demo, and folders that go again."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.demo.lab import Lab
from unikv.errors import MissingExtraError


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    threads = torch.get_num_threads()
    # Threads that wait for each other at every layer crawl where others use the same cores.
    torch.set_num_threads(1)
    scratch = tmp_path_factory.mktemp("kv")
    try:
        yield Lab.build(scratch)
    except MissingExtraError as error:
        pytest.skip(str(error))
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(scratch)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder for a store; the real model's are too large to leave to pytest."""
    yield tmp_path
    shutil.rmtree(tmp_path)
