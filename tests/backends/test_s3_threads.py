"""Helpers share the jobs of a call, and give all of it back when the call is over."""

import threading
import time
from collections import Counter

import pytest

from unikv.backends.s3_threads import Helpers, Share


@pytest.fixture
def helpers() -> Helpers:
    return Helpers(3)


@pytest.mark.parametrize("jobs", [0, 1, 2, 3, 4, 5, 100])
def test_every_job_is_done_once(helpers: Helpers, jobs: int) -> None:
    done: list[int] = []
    helpers.run(list(range(jobs)), done.append)
    assert sorted(done) == list(range(jobs))


def test_no_more_than_so_many_are_under_way_at_once(helpers: Helpers) -> None:
    barrier = threading.Barrier(4)  # passes only if four wait at once
    busy, most, lock = [0], [0], threading.Lock()

    def job(_: int) -> None:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        barrier.wait(10)
        with lock:
            busy[0] -= 1

    helpers.run(list(range(40)), job)
    assert most == [4]


def test_one_job_is_done_where_it_was_asked_for(helpers: Helpers) -> None:
    done: list[threading.Thread] = []
    helpers.run([0], lambda _: done.append(threading.current_thread()))
    assert done == [threading.current_thread()]
    none = Helpers(0)
    none.run([0, 1], lambda _: done.append(threading.current_thread()))
    assert set(done) == {threading.current_thread()}


def test_calls_of_several_threads_share_them(helpers: Helpers) -> None:
    done = Counter[int]()

    def call(number: int) -> None:
        helpers.run([number] * 50, lambda job: done.update([job]))

    callers = [threading.Thread(target=call, args=[number]) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert done == dict.fromkeys(range(8), 50)


def test_what_a_job_raises_is_raised_when_all_have_ended(helpers: Helpers) -> None:
    ended: list[int] = []

    def job(number: int) -> None:
        if number == 0:
            raise ZeroDivisionError
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(ZeroDivisionError):
        helpers.run(list(range(1000)), job)
    before = list(ended)
    assert len(before) < 50
    time.sleep(0.1)
    assert ended == before
    helpers.run([1, 2], job)  # they live on


def test_an_interrupt_waits_for_what_is_under_way() -> None:
    """Jobs write into memory that is the caller's again when the call is over."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def job(_: int) -> None:
        if threading.current_thread() is threading.main_thread():
            begun.wait(10)
            threading.Timer(0.1, may_end.set).start()
            raise KeyboardInterrupt
        begun.set()
        may_end.wait(10)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        Helpers(1).run([0, 1, 2, 3], job)
    assert ended.is_set()


def test_a_second_interrupt_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    share = Share([1], lambda _: time.sleep(0.2))
    worker = threading.Thread(target=share.work)
    worker.start()
    time.sleep(0.05)
    waits = iter([KeyboardInterrupt, KeyboardInterrupt])
    wait = share._idle.wait

    def interrupted(timeout: float | None = None) -> bool:
        for error in waits:
            raise error
        return wait(timeout)

    monkeypatch.setattr(share._idle, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        share.join()
    worker.join(0.01)
    assert not worker.is_alive()
    share.work()  # nothing is left


def test_a_closed_one_goes_on_without_threads(helpers: Helpers) -> None:
    helpers.run([1, 2, 3], lambda _: None)
    helpers.close()
    helpers.close()
    done: list[threading.Thread] = []
    helpers.run([1, 2, 3], lambda _: done.append(threading.current_thread()))
    assert set(done) == {threading.current_thread()}


def test_without_threads_the_caller_does_all(
    helpers: Helpers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a limit of the machine; and they are started when there is room again."""

    def no_room(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def note(job: int) -> None:
        done.append((job, threading.get_ident()))

    done: list[tuple[int, int]] = []
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", no_room)
        helpers.run(list(range(9)), note)
    assert done == [(job, threading.get_ident()) for job in range(9)]
    assert helpers._queue.empty()
    barrier = threading.Barrier(4)

    def meet(_: int) -> None:
        barrier.wait(5)

    helpers.run(list(range(4)), meet)
