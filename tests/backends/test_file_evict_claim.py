"""Claims: one keeps a root within each pair of limits, and writers know the strictest of them."""

import os
from pathlib import Path

import pytest

from unikv.backends.file_evict_claim import claim, release, strictest
from unikv.backends.file_evict_ledger import Ledger
from unikv.backends.file_evict_place import USAGE
from unikv.backends.file_limits import Limits


@pytest.fixture
def root(tmp_path: Path) -> str:
    Ledger(str(tmp_path))
    return str(tmp_path)


def test_limits_are_claimed_once(root: str) -> None:
    lock = claim(root, Limits(1000))
    assert lock is not None
    assert claim(root, Limits(1000)) is None
    other = claim(root, Limits(1000, 5))
    assert other is not None
    release(lock)
    lock = claim(root, Limits(1000))
    assert lock is not None
    release(lock)
    release(other)


def test_the_strictest_of_what_somebody_keeps_counts(root: str) -> None:
    own = Limits(5000, 10)
    assert strictest(root, own) == own
    held = [claim(root, Limits(*limits)) for limits in [(9000,), (3000, 7), (None, 20), (5000, 10)]]
    assert strictest(root, own) == Limits(3000, 20)
    assert strictest(root, Limits(None, 1)) == Limits(3000, 20)
    for lock in held:
        assert lock is not None
        release(lock)
    assert strictest(root, own) == own


@pytest.mark.parametrize(
    "name", ["limits-", "limits-5", "limits-5-x", "limits-5-6-7", "limits--5-6"]
)
def test_a_foreign_name_is_no_claim(root: str, name: str) -> None:
    path = Path(root, USAGE, name)
    path.touch()
    (path.parent / "limits-1-0").symlink_to(path)
    (path.parent / "limits-2-0").mkdir()
    assert strictest(root, Limits(5000)) == Limits(5000)


def test_a_forked_process_does_not_hold_what_was_released(root: str) -> None:
    lock = claim(root, Limits(1))
    assert lock is not None
    ends, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ends, 1)
        os._exit(0)
    release(lock)
    again = claim(root, Limits(1))
    assert again is not None
    release(again)
    os.close(end)
    os.close(ends)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("usage", "need", "over"),
    [(979, 0, False), (981, 11, False), (995, 25, False), (996, 26, True), (1001, 31, True)],
)
def test_eviction_begins_at_98_percent_and_ends_at_97(
    root: str,
    usage: int,
    need: int,
    over: bool,  # noqa: FBT001
) -> None:
    limits, ledger = Limits(1000), Ledger(root)
    ledger.add(0, usage)
    reading = ledger.read()
    assert limits.need(reading, limits.lack(root)) == need
    assert limits.exceeds(root, reading) is over
    assert limits.exceeds(root, reading, 1001 - usage)
    assert limits.nears(root, reading)
    ledger.close()


def test_a_floor_counts_what_is_free(root: str) -> None:
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    reading = Ledger(root).read()
    little, much = Limits(min_free=free // 4), Limits(min_free=free * 4)
    assert little.lack(root) < 0 < much.lack(root)
    assert not little.need(reading, little.lack(root))
    assert much.need(reading, much.lack(root)) > free * 3
    assert much.exceeds(root, reading)
    assert not little.nears(root, reading)
