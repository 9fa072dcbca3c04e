"""MooncakeStore moves bytes of registered memory as they lie, and others through bounded rooms."""

import gc
import mmap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.mooncake_fake import FakeNative, fake_store
from unikv.backends.mooncake import MooncakeStore
from unikv.backends.mooncake_memory import ROOMS, address_of
from unikv.backends.mooncake_write import GATHER_BYTES
from unikv.errors import StoreError
from unikv.store import Item, Outcome, Outcomes, Span
from unikv.testing import content

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def native() -> FakeNative:
    return FakeNative()


@pytest.fixture
def store(native: FakeNative) -> Iterator[MooncakeStore]:
    with fake_store(native, "wait=0&buffer=4MiB") as store:
        yield store


@pytest.fixture
def arena(store: MooncakeStore) -> memoryview:
    arena = memoryview(mmap.mmap(-1, 4 * MIB))
    store.register(arena)
    return arena


def inside(arena: memoryview, moved: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what of it lies in the arena: where, and how much."""
    start = address_of(arena)
    found = [(pointer - start, size) for pointer, size in moved]
    return [(at, size) for at, size in found if 0 <= at < arena.nbytes]


def test_what_lies_in_registered_memory_is_moved_as_it_lies(
    store: MooncakeStore, native: FakeNative, arena: memoryview
) -> None:
    arena[: 200 * KIB] = content("a", 200 * KIB)
    assert store.put([Item("a", [arena[: 200 * KIB]])]).ok
    assert inside(arena, native.moved) == [(0, 200 * KIB)]
    native.moved.clear()
    assert store.get([Span("a", 100, 5000, [arena[MIB : MIB + 4900]])]).ok
    assert native.moved == [(address_of(arena) + MIB, 4900)]
    assert arena[MIB : MIB + 4900] == content("a", 200 * KIB)[100:5000]


def test_a_page_of_the_arena_with_bytes_around_it_is_sent_without_a_copy(
    store: MooncakeStore, native: FakeNative, arena: memoryview
) -> None:
    arena[:MIB] = content("p", MIB)
    header, description = bytes(4096), b"described" * 100
    assert store.put([Item("a", [header, arena[:MIB], description])]).ok
    assert inside(arena, native.moved) == [(0, MIB)]
    assert len(native.moved) == 3
    assert native.objects["a"] == header + content("p", MIB) + description


def test_neighbours_in_memory_go_as_one_range(
    store: MooncakeStore, native: FakeNative, arena: memoryview
) -> None:
    arena[:MIB] = content("p", MIB)
    cuts = [0, 32 * KIB, 64 * KIB, 512 * KIB, MIB]
    views = [arena[start:stop] for start, stop in pairwise(cuts)]
    assert store.put([Item("a", views)]).ok
    assert native.moved == [(address_of(arena), MIB)]
    native.moved.clear()
    spans = [
        Span("a", start, stop, [arena[MIB + start : MIB + stop]]) for start, stop in pairwise(cuts)
    ]
    assert store.get(spans).ok
    assert native.moved == [(address_of(arena) + MIB, MIB)]
    assert arena[MIB : 2 * MIB] == content("p", MIB)


def test_small_objects_of_several_buffers_are_gathered(
    store: MooncakeStore, native: FakeNative, arena: memoryview
) -> None:
    half = GATHER_BYTES // 2
    arena[:half] = content("p", half)
    assert store.put([Item("a", [b"head", arena[:half], b"tail"])]).ok
    assert [size for _, size in native.moved] == [half + 8]
    assert native.objects["a"] == b"head" + content("p", half) + b"tail"


def test_what_lies_elsewhere_goes_through_a_room(
    store: MooncakeStore, native: FakeNative, arena: memoryview
) -> None:
    data = content("a", 100_000)
    assert store.put([Item("a", [data])]).ok  # bytes: nobody can register them
    out = bytearray(100_000)
    assert store.get([Span("a", 0, 100_000, [memoryview(out)])]).ok
    assert out == data
    assert inside(arena, native.moved) == []


def test_one_batch_may_mix_what_is_registered_and_what_is_not(
    store: MooncakeStore, arena: memoryview
) -> None:
    data = content("a", 300 * KIB)
    store.put([Item("a", [data])])
    out = bytearray(100 * KIB)
    spans = [
        Span("a", 0, 100 * KIB, [arena[: 100 * KIB]]),
        Span("a", 100 * KIB, 200 * KIB, [memoryview(out)]),
        Span("a", 200 * KIB, 300 * KIB, [arena[MIB : MIB + 50 * KIB], arena[: 50 * KIB]]),
        Span("gone", 0, 100 * KIB, [memoryview(bytearray(100 * KIB))]),
    ]
    assert list(store.get(spans).codes) == [Outcome.OK] * 3 + [Outcome.MISS]
    assert out == data[100 * KIB : 200 * KIB]
    assert arena[MIB : MIB + 50 * KIB] == data[200 * KIB : 250 * KIB]
    assert arena[: 50 * KIB] == data[250 * KIB :]


def test_more_than_a_room_holds_is_moved_in_several_sessions(
    store: MooncakeStore, native: FakeNative
) -> None:
    size = 300_000  # three of them in a room of a MiB
    names = [f"k{i}" for i in range(10)]
    assert store.put([Item(key, [content(key, size)]) for key in names]).ok
    assert len(native.named("batch_put_session_start")) == 4
    out = [bytearray(size) for _ in names]
    spans = [Span(k, 0, size, [memoryview(o)]) for k, o in zip(names, out, strict=True)]
    assert store.get(spans).ok
    assert len(native.named("batch_get_session_start")) == 4
    assert [bytes(o) for o in out] == [content(key, size) for key in names]


def test_what_no_room_holds_gets_one_for_the_time(store: MooncakeStore, native: FakeNative) -> None:
    before = dict(native.registered)
    size = 5 * MIB
    assert store.put([Item("a", [content("a", size)])]).ok
    out = bytearray(size)
    assert store.get([Span("a", 0, size, [memoryview(out)])]).ok
    assert out == content("a", size)
    assert store.put([Item("a", [content("b", size)])], replace=True).ok
    assert native.objects["a"] == content("b", size)
    assert native.registered == before


def test_what_gets_no_room_fails_alone(store: MooncakeStore, native: FakeNative) -> None:
    size = 5 * MIB
    store.put([Item("a", [content("a", size)]), Item("b", [b"small"])])
    large = Span("a", 0, size, [memoryview(bytearray(size))])
    small = Span("b", 0, 5, [memoryview(bytearray(5))])
    fresh = Item("c", [content("c", size)])
    calls: list[Callable[[], Outcomes]] = [
        lambda: store.get([large, small]),
        lambda: store.put([fresh, Item("d", [b"small"])]),
        lambda: store.put([Item("a", fresh.buffers), Item("b", [b"other"])], replace=True),
    ]
    for call in calls:
        native.say("register_buffer", [-1], [-1])
        outcomes = call()
        assert list(outcomes.codes) == [Outcome.FAILED, Outcome.OK]
        assert "5242880 bytes" in str(outcomes.errors[0])
        native.answers["register_buffer"].clear()


def test_what_is_registered_is_bounded_however_many_call(
    store: MooncakeStore, native: FakeNative
) -> None:
    at_most = sum(native.registered.values())
    assert at_most == 4 * MIB + 2 * mmap.PAGESIZE
    inside, most = 0, 0
    lock = threading.Lock()
    more = threading.Barrier(ROOMS)

    def count() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        more.wait(10)
        with lock:
            inside -= 1

    native.before["batch_put_session_start"] = count
    with ThreadPoolExecutor(4 * ROOMS) as pool:
        futures = [
            pool.submit(store.put, [Item(f"k{i}", [content(f"k{i}", 900 * KIB)])])
            for i in range(4 * ROOMS)
        ]
        assert all(future.result().ok for future in futures)
    assert most == ROOMS
    assert sum(native.registered.values()) == at_most


def test_memory_is_registered_once(
    store: MooncakeStore, native: FakeNative, arena: memoryview
) -> None:
    before = dict(native.registered)
    store.register(arena)
    store.register(arena[MIB : 2 * MIB])
    assert native.registered == before


def test_memory_that_cannot_be_registered_is_refused(
    store: MooncakeStore, native: FakeNative
) -> None:
    whole = memoryview(bytearray(1000))
    store.register(whole[100:200])
    for bad, words in (
        (whole[150:250], "overlap"),
        (whole, "overlap"),
        (memoryview(bytes(10)), "read-only: True"),
        (whole[::2], "contiguous: False"),
        (whole[:0], "register 0 bytes"),
    ):
        with pytest.raises(StoreError, match=words):
            store.register(bad)
    native.say("register_buffer", [-600])
    with pytest.raises(StoreError, match="INVALID_PARAMS"):
        store.register(memoryview(bytearray(10)))


def test_memory_is_forgotten_when_its_owner_lets_it_go(native: FakeNative) -> None:
    """Each client of an engine registers an arena; one that is closed leaves nothing."""
    with fake_store(native) as store:
        before = dict(native.registered)
        block = mmap.mmap(-1, 4096)
        start = address_of(memoryview(block))
        store.register(memoryview(block))
        view = memoryview(block)[:10]
        del block
        gc.collect()
        assert native.registered == {**before, start: 4096}  # somebody has a view of it yet
        del view
        gc.collect()
        other = memoryview(bytearray(b"other"))
        assert store.put([Item("key", [other])]).ok
        assert native.registered == before
        for _ in range(20):
            store.register(memoryview(mmap.mmap(-1, 4096)))
        store.put([Item("again", [other])])
        assert native.registered == before
        assert store._memory._regions[-1].start in before


def test_memory_whose_owner_cannot_tell_lives_as_long_as_the_store_is_open(
    native: FakeNative,
) -> None:
    with fake_store(native) as store:
        block = bytearray(4096)
        store.register(memoryview(block))
        with pytest.raises(BufferError):  # somebody holds it
            block.append(1)
    gc.collect()
    block.append(1)


def test_memory_that_outlives_its_store_is_let_go(native: FakeNative) -> None:
    block = mmap.mmap(-1, 4096)
    with fake_store(native) as store:
        store.register(memoryview(block))
    assert native.closed == 1
    block.close()  # nobody holds it; and nothing is asked of the client, which is closed
    del block
    gc.collect()


@given(data=st.data())
def test_any_buffers_anywhere_make_the_object_and_any_views_get_it(data: st.DataObject) -> None:
    native = FakeNative()
    with fake_store(native) as store:
        arena = memoryview(bytearray(200_000))
        store.register(arena)
        sizes = data.draw(st.lists(st.sampled_from([0, 1, 7, 500, 20_000, 40_000]), max_size=5))
        ours = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
        at, buffers = 0, []
        for i, (size, mine) in enumerate(zip(sizes, ours, strict=True)):
            piece = content(f"piece{i}", size)
            if mine:
                arena[at : at + size] = piece
                buffers.append(arena[at : at + size])
                at += size
            else:
                buffers.append(memoryview(piece))
        whole = b"".join(buffers)
        assert store.put([Item("key", buffers)]).ok
        assert list(store.stat(["key"])) == [len(whole)]
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, len(whole)))
        target = memoryview(bytearray(stop - start))
        middle = data.draw(st.integers(0, stop - start))
        views = [target[:middle], target[middle:]]
        if data.draw(st.booleans()):
            views = [arena[: stop - start]]
        assert store.get([Span("key", start, stop, views)]).ok
        assert b"".join(views) == whole[start:stop]
