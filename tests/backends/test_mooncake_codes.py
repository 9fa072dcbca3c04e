"""MooncakeStore turns each number of the library into one outcome, and says whether it may pass."""

from collections.abc import Iterator

import pytest

from tests.servers.mooncake_fake import FakeNative, fake_store
from unikv.backends.mooncake import MooncakeStore
from unikv.backends.mooncake_codes import CODES, meaning, refusal
from unikv.errors import StoreError
from unikv.store import Item, Outcome, Outcomes, Span

OK, EXISTED, MISS, FAILED = Outcome
DATA = bytes(range(100)) * 2
ABSENT = {-703, -704}
NUMBERS = [*CODES, -1003, -1102, -1201, -1300, -1401, -1502, -1604, -31337]
PASSING = {-101, -103, -200, -500, -601, -700, -701, -702, -703, -705, -706, -707, -708, -710}
PASSING |= {-712, -714, -800, -900, -901, -1010, -1600, -1601, -1700}
PASSING |= {-1003, -1102, -1401}  # of the ranges


@pytest.fixture
def native() -> FakeNative:
    return FakeNative({"a": DATA, "b": DATA, "c": DATA})


@pytest.fixture
def store(native: FakeNative) -> Iterator[MooncakeStore]:
    with fake_store(native) as store:
        yield store


def get(store: MooncakeStore, *keys: str) -> Outcomes:
    return store.get([Span(key, 50, 150, [memoryview(bytearray(100))]) for key in keys])


def failed(outcomes: Outcomes, at: int, code: int) -> None:
    """One item failed, names its key and the code, and says whether it may pass."""
    assert outcomes.codes[at] == FAILED
    error = outcomes.errors[at]
    assert f"({code})" in str(error)
    assert meaning(code).name in str(error)
    assert "'b'" in str(error)
    assert error.retryable == (code in PASSING)


@pytest.mark.parametrize("code", NUMBERS)
def test_each_number_has_a_meaning_and_says_whether_it_may_pass(code: int) -> None:
    error = refusal(code)
    assert isinstance(error, StoreError)
    assert error.retryable == (code in PASSING)
    assert str(code) in str(error)


@pytest.mark.parametrize("call", ["batch_get_session_start", "batch_get_into_multi_buffer_ranges"])
@pytest.mark.parametrize("code", NUMBERS)
def test_get_fails_or_misses_by_the_number_and_its_neighbours_come(
    store: MooncakeStore, native: FakeNative, call: str, code: int
) -> None:
    fine = 0 if call == "batch_get_session_start" else 100
    native.say(call, [fine, code, fine])
    outcomes = get(store, "a", "b", "c")
    assert [outcomes.codes[0], outcomes.codes[2]] == [OK, OK]
    if code in ABSENT:
        assert outcomes.codes[1] == MISS
    elif code in (-600, -702, -707):  # asked again, or read whole: it comes
        assert outcomes.codes[1] == OK
    else:
        failed(outcomes, 1, code)


@pytest.mark.parametrize("code", [-600, -707])
def test_a_session_that_always_ends_fails_and_may_pass(
    store: MooncakeStore, native: FakeNative, code: int
) -> None:
    native.say("batch_get_into_multi_buffer_ranges", *[[code]] * 5)
    outcomes = get(store, "b")
    assert list(outcomes.codes) == [FAILED]
    assert outcomes.errors[0].retryable
    assert "5 tries" in str(outcomes.errors[0])
    assert len(native.named("batch_get_session_start")) == 5


@pytest.mark.parametrize("came", [0, 1, 99, 101])
def test_B55_another_number_of_bytes_is_no_hit(
    store: MooncakeStore, native: FakeNative, came: int
) -> None:
    native.say("batch_get_into_multi_buffer_ranges", [100, came])
    outcomes = get(store, "a", "b")
    assert list(outcomes.codes) == [OK, FAILED]
    assert f"{came} of 100 bytes" in str(outcomes.errors[1])


def test_B55_nothing_is_no_hit_and_what_failed_comes_at_the_next_try(
    store: MooncakeStore, native: FakeNative
) -> None:
    del native.objects["b"]
    native.say("batch_get_into_multi_buffer_ranges", [100, -800])  # of those that are there
    outcomes = get(store, "a", "b", "c")
    assert list(outcomes.codes) == [OK, MISS, FAILED]
    assert outcomes.errors[2].retryable
    assert list(get(store, "a", "b", "c").codes) == [OK, MISS, OK]


def test_a_session_is_ended_whatever_comes_of_it(store: MooncakeStore, native: FakeNative) -> None:
    native.say("batch_get_into_multi_buffer_ranges", [-800])
    get(store, "b")
    assert native.reading == set()


BUSY = {-200, -601, -704}  # may be over a moment later: waited for


@pytest.mark.parametrize("code", [*NUMBERS, 5])
@pytest.mark.parametrize("call", ["start", "write", "end"])
def test_put_fails_by_the_number_and_its_neighbours_are_stored(
    store: MooncakeStore, native: FakeNative, call: str, code: int
) -> None:
    name, fine = {
        "start": ("batch_put_session_start", 0),
        "write": ("batch_put_from_multi_buffer_ranges", 100),
        "end": ("batch_put_session_end", 0),
    }[call]
    if call != "write" and code == 5:
        return  # no number of the library
    native.objects.clear()
    native.say(name, [fine, code, fine])
    outcomes = store.put([Item(key, [DATA[:100]]) for key in "abc"])
    assert [outcomes.codes[0], outcomes.codes[2]] == [OK, OK]
    assert "b" not in native.objects or outcomes.codes[1] == OK
    if code in (-600, -705):  # barred, or being written: overwritten, as nobody stored it
        assert outcomes.codes[1] == OK
        assert native.objects["b"] == DATA[:100]
    elif code == 5:
        failed(outcomes, 1, -500)
    elif code in BUSY:
        assert outcomes.codes[1] == FAILED
        assert outcomes.errors[1].retryable
        assert "waited 0 s" in str(outcomes.errors[1])
    else:
        failed(outcomes, 1, code)
    if call == "write" and outcomes.codes[1] == FAILED:
        assert native.named("batch_put_session_revoke") == [("b",)]
        assert "b" not in native.writing


@pytest.mark.parametrize("code", NUMBERS)
def test_delete_fails_or_misses_by_the_number(
    store: MooncakeStore, native: FakeNative, code: int
) -> None:
    native.say("batch_remove", [0, code, 0])
    outcomes = store.delete(["a", "b", "c"])
    assert [outcomes.codes[0], outcomes.codes[2]] == [OK, OK]
    if code == -704:
        assert outcomes.codes[1] == MISS
    else:
        failed(outcomes, 1, code)


@pytest.mark.parametrize("code", NUMBERS)
def test_a_master_that_fails_is_no_miss_to_stat(
    store: MooncakeStore, native: FakeNative, code: int
) -> None:
    native.say("batch_get_replica_desc", [])  # nothing: gone, or no answer
    native.say("batch_is_exist", [code])
    with pytest.raises(StoreError, match="stat of 2 keys") as caught:
        store.stat(["a", "b"])
    assert caught.value.retryable == (code in PASSING)


def test_stat_of_nothing_there_asks_once_more_and_no_further(
    store: MooncakeStore, native: FakeNative
) -> None:
    assert list(store.stat(["x", "y"])) == [None, None]
    assert native.named("batch_is_exist") == [("x",)]


def test_no_error_carries_bytes_of_an_object(store: MooncakeStore, native: FakeNative) -> None:
    secret = b"SECRET" * 30
    native.say("batch_put_session_start", [-1])
    outcomes = store.put([Item("k", [secret])])
    assert "SECRET" not in f"{outcomes} {outcomes.errors[0]!r} {store!r} {store.opener!r}"
