"""MemoryStore keeps the promises of a store."""

from pathlib import Path

from unikv.backends.memory import MemoryStore
from unikv.store import Item, Store
from unikv.testing import StoreContract


class TestMemoryStore(StoreContract):
    def open(self, folder: Path) -> Store:  # noqa: ARG002 - it needs none
        return MemoryStore()

    def test_two_stores_share_nothing(self, store: Store) -> None:
        store.put([Item("key", [b"x"])])
        assert MemoryStore().stat(["key"]) == [None]

    def test_its_repr_says_how_much_it_holds(self, store: Store) -> None:
        store.put([Item("key", [b"x"])])
        assert repr(store) == "MemoryStore(1 objects)"
