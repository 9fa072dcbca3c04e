"""Arena: slots never overlap, and every byte comes back, whatever the order of calls."""

import ctypes
import os
from pathlib import Path
from time import monotonic, sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unikv.arena import ALIGN, Arena, Slot
from unikv.errors import PoolError
from unikv.memory import attach

PAGES = 16

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "release", "hold", "quarantine"]),
        st.integers(0, PAGES + 2),
        st.integers(0, PAGES + 2),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(STEPS)
def test_slots_do_not_overlap_and_all_of_it_comes_back(
    steps: list[tuple[str, int, int]],
) -> None:
    arena = Arena(PAGES * ALIGN)
    held: list[tuple[Slot, int]] = []  # and how often
    shut: set[Slot] = set()
    for step, one, other in steps:
        if step == "take":
            least, most = sorted((one * ALIGN, other * ALIGN - 17 * (other > 0)))
            slot = arena.take(least, most)
            taken = {page for some, _ in held for page in pages_of(some)}
            if slot is None:
                free = [page not in taken for page in range(PAGES)]
                assert not most or longest(free) * ALIGN < max(least, 1)
                continue
            assert least <= slot.size <= max(most + ALIGN - 1, least)
            assert not taken & pages_of(slot)
            held.append((slot, 1))
        elif held:
            at = one % len(held)
            slot, count = held[at]
            if step == "hold":
                slot.hold()
                held[at] = (slot, count + 1)
            elif step == "quarantine":
                slot.quarantine()
                shut.add(slot)
            else:
                slot.release()
                held[at] = (slot, count - 1)
                if count == 1:
                    del held[at]
                    shut.discard(slot)
        assert arena.used == sum(slot.size for slot, _ in held)
        assert arena.quarantined == sum(slot.size for slot in shut)
    for slot, count in held:
        for _ in range(count):
            slot.release()
    whole = arena.take(arena.size, arena.size)
    assert whole is not None
    assert whole.size == PAGES * ALIGN
    assert arena.quarantined == 0


def pages_of(slot: Slot) -> set[int]:
    return set(range(slot.start // ALIGN, (slot.start + slot.size) // ALIGN))


def longest(free: list[bool]) -> int:
    best = run = 0
    for one in free:
        run = run + 1 if one else 0
        best = max(best, run)
    return best


def test_another_mapping_of_shared_memory_sees_what_a_slot_holds() -> None:
    arena = Arena(4 * ALIGN, shared=True)
    slot = arena.take(ALIGN, ALIGN)
    assert slot is not None
    slot.cut(0, 2, 512).tensor.fill_(7)
    other = attach(arena.fd, arena.size)
    assert other[slot.start : slot.start + 1024] == bytes([7]) * 1024
    slot.release()
    arena.close()


def test_whoever_maps_shared_memory_need_not_enter_its_pages_by_use() -> None:
    size = 8 << 20
    arena = Arena(size, shared=True)
    other = attach(arena.fd, size)
    begins = ctypes.addressof(ctypes.c_char.from_buffer(other))
    end = monotonic() + 10
    while entered(begins) < size and monotonic() < end:
        sleep(0.01)
    assert entered(begins) == size
    arena.close()


def entered(begins: int) -> int:
    """Return the bytes of a mapping that are in this process's page table."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{begins:x}-"):
            return int(next(row for row in lines if row.startswith("Rss:")).split()[1]) << 10
    return 0


def test_more_shared_memory_than_there_is_is_refused_at_once() -> None:
    with pytest.raises(PoolError, match=r"an arena of \d+ bytes of shared memory: \d+ are free"):
        Arena(1 << 50, shared=True)


def test_shared_memory_cannot_be_cut_short_under_whoever_maps_it() -> None:
    """A process that touches what is gone is killed by SIGBUS."""
    arena = Arena(4 * ALIGN, shared=True)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, ALIGN)
    arena.close()
    fd = os.memfd_create("other")
    os.ftruncate(fd, ALIGN)
    with pytest.raises(PermissionError, match="cut short"):
        attach(fd, ALIGN)
    os.close(fd)


@pytest.mark.parametrize(("at", "pages", "page_bytes"), [(-8, 1, 8), (0, -1, 8), (0, 1, -8)])
def test_a_slot_is_cut_within_its_bounds(at: int, pages: int, page_bytes: int) -> None:
    arena = Arena(4 * ALIGN, shared=False)
    arena.take(ALIGN, ALIGN)
    slot = arena.take(ALIGN, ALIGN)
    assert slot is not None
    with pytest.raises(PoolError, match="do not fit a slot of 4096"):
        slot.cut(at, pages, page_bytes)
    arena.close()
    with pytest.raises(PoolError, match="the arena is closed"):
        slot.cut(0, 1, 8)


def test_a_numa_node_that_is_none_is_refused() -> None:
    with pytest.raises(PoolError, match="numa_node="):
        Arena(ALIGN, shared=True, numa_node=63)
    Arena(ALIGN, shared=True, numa_node=0).close()


def test_a_closed_arena_leaves_no_descriptor() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    arena = Arena(ALIGN, shared=True)
    arena.close()
    arena.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_arena_below_4096_bytes_is_refused() -> None:
    with pytest.raises(PoolError, match="an arena of 4095 bytes: want at least 4096"):
        Arena(4095)


def test_what_does_not_fit_a_slot_is_refused() -> None:
    slot = Arena(2 * ALIGN).take(ALIGN, ALIGN)
    assert slot is not None
    with pytest.raises(PoolError, match="3 pages of 2048 bytes at 0 do not fit a slot of 4096"):
        slot.cut(0, 3, 2048)
