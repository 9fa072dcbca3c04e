"""Testing: the promises of a store as tests that every backend runs. It knows no backend.

A backend's test class inherits them all and says how to open its store::

    class TestMyStore(StoreContract):
        def open(self, folder: Path) -> Store:
            return MyStore(folder)

Names of tests carry the ids of the field reports that they answer (B46, B53, ...). What pytest is
not needed for stands in `unikv.testing_promises`; ``unikv conformance URL`` tries the same.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from unikv.store import Store
from unikv.testing_checks import values_of
from unikv.testing_data import HOSTILE_KEYS, Keys, content, page_key, read
from unikv.testing_promises import Promises

__all__ = ["HOSTILE_KEYS", "Keys", "StoreContract", "content", "page_key", "read"]


class StoreContract(Promises):
    """What `unikv.store.Store` promises. Inherit it and give `open`."""

    def open(self, folder: Path) -> Store:
        """Open an empty store; ``folder`` is not there yet, for those who want one."""
        raise NotImplementedError

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002 - for those who can
        """Return another store over the same objects, as another process would open it."""
        return store

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Try a promise with each of the values that it is to be kept for."""
        for name, values in values_of(metafunc.function).items():
            metafunc.parametrize(name, values)

    @pytest.fixture
    def keys(self) -> Keys:
        """Provide keys for a store that holds nothing else."""
        return Keys()

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """Provide an empty store."""
        store = self.open(tmp_path / "store")
        yield store
        store.close()

    @pytest.fixture
    def second(self, store: Store, tmp_path: Path) -> Iterator[Store]:
        """Provide a second view of the same objects."""
        second = self.open_again(store, tmp_path / "store")
        yield second
        second.close()
