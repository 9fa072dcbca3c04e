"""TieredStore keeps the promises of a store in both modes, whatever its tiers are."""

from pathlib import Path

from unikv.backends.file import FileStore
from unikv.backends.memory import MemoryStore
from unikv.backends.tiered import TieredStore, tiered
from unikv.registry import open_store
from unikv.store import Item, Outcome, Store
from unikv.testing import Keys, StoreContract, read

OK, EXISTED, MISS, FAILED = Outcome


class TestWriteThrough(StoreContract):
    def open(self, folder: Path) -> Store:  # noqa: ARG002 - it needs none
        return tiered(MemoryStore(), MemoryStore())

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002 - as above
        assert isinstance(store, TieredStore)
        return tiered(store._pair.fast, store._pair.slow)


class TestWriteBack(StoreContract):
    def open(self, folder: Path) -> Store:  # noqa: ARG002 - as above
        return tiered(MemoryStore(), MemoryStore(), mode="write-back")


class TestFoldersThrough(StoreContract):
    mode = "write-through"

    def open(self, folder: Path) -> Store:
        return open_store(
            f"tiered://?fast=fsspec%2Bfile://{folder}/fast&slow=fsspec%2Bfile://{folder}/slow"
            f"&mode={self.mode}"
        )

    def open_again(self, store: Store, folder: Path) -> Store:
        return self.open(folder) if self.mode == "write-through" else store


class TestFoldersBack(TestFoldersThrough):
    mode = "write-back"


class TestPrivateFastTiers(StoreContract):
    """Two hosts share the slow tier; each has a fast one, which knows nothing of the other host.

    So two promises are kept for what is not in one's own fast tier, and no further.
    """

    def open(self, folder: Path) -> Store:
        return tiered(MemoryStore(), FileStore(folder))

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002 - as above
        return tiered(MemoryStore(), FileStore(folder))

    def test_B92_a_lost_object_is_missed_and_written_anew(
        self, store: Store, second: Store, keys: Keys
    ) -> None:
        key = keys.page(0)
        store.put([Item(key, [b"data"])])
        assert list(second.delete([key]).codes) == [OK]
        assert read(store, key, 0, 4) == b"data"  # the right bytes, of its own fast tier
        assert read(second, key, 0, 4) == MISS
        assert list(second.put([Item(key, [b"data"])]).codes) == [OK]

    def test_B93_what_another_wrote_is_seen_at_once(
        self, store: Store, second: Store, keys: Keys
    ) -> None:
        key = keys.page(0)
        assert list(store.stat([key])) == [None]
        second.put([Item(key, [b"four"])])
        assert list(store.stat([key])) == [4]
        assert read(store, key, 0, 4) == b"four"
        second.put([Item(key, [b"longer now"])])
        assert read(store, key, 0, 10) == b"longer now"  # not from the fast tier, which is short


class _Remote(MemoryStore):
    costly_stat = True


def test_sizes_are_costly_where_they_are_in_the_slow_tier() -> None:
    for fast, slow, costly in [
        (MemoryStore(), _Remote(), True),
        (_Remote(), MemoryStore(), True),
        (MemoryStore(), MemoryStore(), False),
    ]:
        store = tiered(fast, slow)
        assert store.costly_stat is costly
        store.close()
