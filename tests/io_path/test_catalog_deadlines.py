"""Catalogs on a store that hangs: a scheduler waits one deadline, then not at all."""

import gc
import os
import threading
from contextlib import suppress
from typing import Any

import pytest

from tests.io_path.lab import PAGES, Lab, nothing_left, until, within
from unikv import Catalog, page_hashes
from unikv.errors import SpecError, StoreError
from unikv.testing_faults import Rule


@pytest.fixture
def lab(threads_lab: Lab) -> Lab:
    threads_lab.fill()
    return threads_lab


def hung(lab: Lab) -> Any:
    rules = [Rule("hang", verbs=(verb,), while_file=lab.gate()) for verb in ("stat", "get")]
    return lab.store(*rules)


def test_a_hung_store_costs_one_deadline_and_is_found_again(lab: Lab) -> None:
    catalog = Catalog(hung(lab), lab.world.namespace, deadline_s=0.3)
    assert catalog.match(lab.world.pages)[:2] == (6, True)
    lab.shut()
    with within(0.3 + 0.3):
        match = catalog.match(lab.world.pages)
    assert (match.pages, match.exact) == (0, False)
    with within(0.3):
        for _ in range(20):
            assert not catalog.match(lab.world.pages).exact
    lab.open()
    until(lambda: catalog.match(lab.world.pages)[:2] == (6, True), 7)
    catalog.close()


def test_a_hundred_lookups_at_once_are_answered_by_the_deadline(lab: Lab) -> None:
    catalog = Catalog(hung(lab), lab.world.namespace, deadline_s=0.3)
    lab.shut()
    threads = [threading.Thread(target=catalog.match, args=(lab.world.pages,)) for _ in range(100)]
    with within(0.3 + 0.6):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lab.open()
    until(lambda: catalog.match(lab.world.pages).pages == 6, 7)
    catalog.close()


def test_many_lookups_at_once_are_right(lab: Lab) -> None:
    """More than there are threads, on a store that takes its time."""
    store = lab.store(Rule("delay", verbs=("stat",), keys=PAGES, seconds=0.01))
    absent = page_hashes(range(9000, 9024), 4)
    with nothing_left():
        catalog = Catalog(store, lab.world.namespace)
        found: list[tuple[int, int]] = []

        def ask(n: int, mine: Catalog) -> None:
            pages = lab.world.pages[: n % 6 + 1] + absent[: n % 3]
            found.append((n % 6 + 1, mine.match(pages).pages))

        threads = [threading.Thread(target=ask, args=(n, catalog)) for n in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(want == got for want, got in found)
        assert len(found) == 40
        catalog.close()
        del catalog


@pytest.mark.parametrize("how", ["close", "forget"])
def test_nothing_is_left_of_a_catalog(lab: Lab, how: str) -> None:
    with nothing_left():
        catalog = Catalog(hung(lab), lab.world.namespace, deadline_s=0.2)
        assert catalog.match(lab.world.pages).pages == 6
        lab.shut()
        assert catalog.match(lab.world.pages).pages == 0
        catalog.match(lab.world.pages)  # which has a look at the store
        if how == "close":
            catalog.close()
            catalog.close()
            with pytest.raises(StoreError, match="closed"):
                catalog.match(lab.world.pages)
        del catalog
        gc.collect()
        lab.open()


def test_closing_ends_a_lookup_that_is_under_way(lab: Lab) -> None:
    catalog = Catalog(hung(lab), lab.world.namespace, deadline_s=20)
    lab.shut()
    ended = threading.Event()

    def ask() -> None:
        with suppress(StoreError):
            assert catalog.match(lab.world.pages).pages == 0
        ended.set()

    thread = threading.Thread(target=ask)
    thread.start()
    until(lab.befallen)
    catalog.close()
    try:
        assert ended.wait(3)
    finally:
        lab.open()
        thread.join()


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan"), float("inf"), "5", None, True, 1e9])
def test_a_deadline_that_is_none_is_refused(lab: Lab, deadline_s: Any) -> None:
    with pytest.raises(SpecError, match="deadline_s"):
        Catalog(lab.store(), lab.world.namespace, deadline_s=deadline_s)


def test_a_fork_neither_asks_nor_closes_its_parents_catalog(lab: Lab) -> None:
    """A thread of the parent holds the catalog's lock: the child's end does not wait for it."""
    catalog = Catalog(lab.store(), lab.world.namespace)
    assert catalog.match(lab.world.pages).pages == 6
    with catalog._guard.crew._change:  # as when another thread is just taking a worker
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    catalog.match(lab.world.pages)
                except StoreError:
                    code = 0
                if not code:
                    worker = threading.Thread(target=catalog.close, daemon=True)
                    worker.start()
                    worker.join(2)
                    code = 2 if worker.is_alive() else 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert catalog.match(lab.world.pages).pages == 6
    catalog.close()
