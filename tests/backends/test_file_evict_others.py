"""Several evict beneath one root: what one has chosen the others may have removed."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.backends.bounds import BLOCK, make_old, put, there
from unikv.backends.file import FileStore
from unikv.backends.file_evict import Evictor
from unikv.backends.file_evict_child import Child
from unikv.backends.file_evict_ledger import Ledger
from unikv.testing import page_key


@pytest.mark.parametrize("seeds", [page_key, lambda number: f"other{number}"], ids=["pages", "_"])
def test_what_others_evicted_keeps_nobody_from_evicting_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: object
) -> None:
    """One that chose it as the next to go goes on with what is there."""
    monkeypatch.setattr(Child, "ensure", lambda _self: None)
    keys = [seeds(number) for number in range(160)]  # type: ignore[operator]
    with closing(FileStore(tmp_path, max_bytes=10**9)) as store:
        put(store, *keys)
        for age, key in enumerate(keys):
            make_old(store, key, 7200 * (2000 - age))
        ledger = Ledger(str(tmp_path))
        evictor = Evictor(str(tmp_path), ledger)
        for _ in range(4):
            assert evictor.evict(BLOCK, held=False).objects == 1
            store.delete(sorted(there(store), key=keys.index)[:35])  # with all of the next ones
        assert len(there(store)) == 160 - 4 * 36
        ledger.close()
