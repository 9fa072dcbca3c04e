"""Both stores behave as a plain dict does, whatever is asked of them in whatever order."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from unikv.backends.file import FileStore
from unikv.backends.memory import MemoryStore
from unikv.store import Item, Outcome, Store
from unikv.testing import content, page_key, read

KEYS = st.sampled_from([page_key(0), page_key(0, "_H1"), page_key(1), "ns_0_0", "ab", "ab12"])
SIZES = st.sampled_from([0, 1, 5, 300])


class Model(RuleBasedStateMachine):
    """A store beside the dict that it should equal."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.version = 0

    def put_in_model(self, key: str, data: bytes, *, replace: bool) -> Outcome:
        there = self.objects.get(key)
        if not replace and there is not None and len(there) == len(data):
            return Outcome.EXISTED
        self.objects[key] = data
        return Outcome.OK

    @rule(items=st.lists(st.tuples(KEYS, SIZES), max_size=4), replace=st.booleans())
    def put(self, items: list[tuple[str, int]], replace: bool) -> None:  # noqa: FBT001
        self.version += 1
        objects = [(key, content(key, size, self.version)) for key, size in items]
        outcomes = self.store.put(
            [Item(key, [data[:2], data[2:]]) for key, data in objects], replace=replace
        )
        assert outcomes.codes == [
            self.put_in_model(key, data, replace=replace) for key, data in objects
        ]

    @rule(key=KEYS, start=st.integers(0, 310), size=st.integers(0, 310))
    def get(self, key: str, start: int, size: int) -> None:
        there = self.objects.get(key)
        if there is None:
            expected: bytes | Outcome = Outcome.MISS
        elif start + size > len(there):
            expected = Outcome.FAILED
        else:
            expected = there[start : start + size]
        assert read(self.store, key, start, start + size) == expected

    @rule(keys=st.lists(KEYS, max_size=3, unique=True))
    def delete(self, keys: list[str]) -> None:
        there = [self.objects.pop(key, None) is not None for key in keys]
        assert self.store.delete(keys).codes == [
            Outcome.OK if was else Outcome.MISS for was in there
        ]

    @rule(keys=st.lists(KEYS, max_size=4))
    def stat(self, keys: list[str]) -> None:
        sizes = [len(self.objects[key]) if key in self.objects else None for key in keys]
        assert self.store.stat(keys) == sizes

    @rule(key=KEYS, digits=st.integers(0, 5))
    def list_prefix(self, key: str, digits: int) -> None:
        prefix = key[:digits]
        found = {entry.key: entry.size for entry in self.store.list(prefix)}
        assert found == {k: len(v) for k, v in self.objects.items() if k.startswith(prefix)}

    @invariant()
    def everything_is_there(self) -> None:
        for key, data in self.objects.items():
            assert read(self.store, key, 0, len(data)) == data


class MemoryModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()


class FileModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.store = FileStore(self.root)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = FileStore(self.root)

    @rule()
    def sweep(self) -> None:
        with_other = FileStore(self.root)
        assert with_other.sweep() == 0
        with_other.close()

    @precondition(lambda self: self.objects)
    @rule(choice=st.integers(0, 10))
    def lose_a_file(self, choice: int) -> None:
        key = sorted(self.objects)[choice % len(self.objects)]
        del self.objects[key]
        next(self.root.rglob(key)).unlink()

    @rule()
    def lose_all_empty_folders(self) -> None:
        for folder in sorted(self.root.rglob("*"), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.root)


TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = settings(stateful_step_count=30)
TestFileModel = FileModel.TestCase
TestFileModel.settings = settings(stateful_step_count=30)
