"""Soak: half a minute of what `make soak` does for ten; and that it sees what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.soak.ledger import Ledger
from tests.soak.pool import Lane, Pool, WrongValueError
from tests.soak.universe import GARBAGE, POISON, A, B

ROOT = Path(__file__).parents[2]


def soak(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.soak.soak", "--folder", str(folder), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.soak
def test_half_a_minute_of_faults_and_kills_breaks_no_promise(tmp_path: Path) -> None:
    done = soak(tmp_path, "--seconds", "20")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.soak
def test_a_store_that_loses_what_it_said_to_have_stored_is_found_out(tmp_path: Path) -> None:
    done = soak(tmp_path, "--seconds", "12", "--spoil")
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    assert "was reported stored and is missing" in done.stdout or "A, at the end" in done.stdout


@pytest.fixture
def lane() -> Lane:
    torch.set_num_threads(1)
    return Pool(range(1, 2), 0).take(A.paths()[0].ids[:3])


def test_a_lane_that_holds_its_pages_is_right(lane: Lane) -> None:
    lane.fill()
    lane.check(3)
    lane.check_layer(2)
    lane.check_harmless(whole=True)


def test_a_lane_with_fewer_pages_is_right_for_just_so_many(lane: Lane) -> None:
    lane.fill()
    lane.pool.data[:, :, lane.slots[2]] = POISON
    lane.check(2)
    lane.check_harmless(whole=True)
    for pages in (0, 1, 3):
        with pytest.raises(WrongValueError):
            lane.check(pages)


@pytest.mark.parametrize("value", [POISON, GARBAGE, 1])
def test_one_wrong_value_is_seen(lane: Lane, value: int) -> None:
    lane.fill()
    lane.pool.data[1, 2, lane.slots[1, 3], 0, 5] = value
    with pytest.raises(WrongValueError):
        lane.check(3)
    with pytest.raises(WrongValueError):
        lane.check_layer(2)
    with pytest.raises(WrongValueError):
        lane.check_harmless(whole=True)
    lane.check_layer(1)


def test_a_value_in_a_slot_of_no_page_is_seen(lane: Lane) -> None:
    lane.fill()
    spare = set(range(lane.first, lane.first + 100)) - set(lane.slots.flatten().tolist())
    lane.pool.data[0, 0, spare.pop()] = 1
    with pytest.raises(WrongValueError):
        lane.check(3)
    with pytest.raises(WrongValueError):
        lane.check_harmless(whole=False)


def test_a_write_to_a_lane_that_was_given_back_is_seen(lane: Lane) -> None:
    pool, first = lane.pool, lane.first
    lane.give_back()
    pool.check_idle()
    pool.data[0, 3, first] = 1
    with pytest.raises(WrongValueError):
        pool.check_idle()


def test_pages_of_different_folders_and_places_differ() -> None:
    ids = [number for world in (A, B) for number in {i for p in world.paths() for i in p.ids}]
    assert len(ids) == len(set(ids))
    assert len(ids) == A.pages + B.pages


def test_a_ledger_outlives_a_writer_that_was_killed_in_the_middle_of_a_line(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path / "stored"), Ledger(tmp_path / "stored")
    one.add([1, 2], [0])
    with (tmp_path / "stored").open("a") as file:
        file.write("000000")
    other.add([2, 3], [0, 1])
    wanted = {(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)}
    assert one.read() == other.read() == Ledger(tmp_path / "stored").read() == wanted
