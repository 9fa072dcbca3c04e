"""A store without faults, or with those that only wait, is a store like any other."""

from pathlib import Path

from tests.faults.openable import OpenableFileStore
from unikv.backends.memory import MemoryStore
from unikv.store import Opener, Store
from unikv.testing import StoreContract
from unikv.testing_faults import Plan, Rule, faulty, open_faulty


class TestWithoutRules(StoreContract):
    def open(self, folder: Path) -> Store:
        return faulty(OpenableFileStore(folder), Plan())

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002 - by its opener
        opener: Opener = faulty(OpenableFileStore(folder), Plan()).opener
        plan, inner, spares = opener.arguments
        assert (opener.module, opener.function) == ("unikv.testing_faults", "open_faulty")
        assert isinstance(plan, str)
        assert isinstance(inner, list)
        assert isinstance(spares, int)
        return open_faulty(plan, inner, spares)


class TestRightThoughLate(StoreContract):
    def open(self, folder: Path) -> Store:  # noqa: ARG002 - memory has none
        rules = [
            Rule("delay", seconds=0),
            Rule("late", how="right", seconds=0),
            Rule("error", probability=0),
        ]
        return faulty(MemoryStore(), rules)
