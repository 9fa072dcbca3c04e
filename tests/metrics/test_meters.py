"""Meters: counts are exact under threads, closed in number, and hurt nobody who counts."""

import os
import subprocess
import sys
import threading
import timeit
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.meter_table import BOUNDS, METERS, Meter
from unikv.meters import Meters, Sample


def by_name(meters: Meters, name: str, **labels: str) -> Sample:
    [found] = [s for s in meters.read() if s.name == name and dict(s.labels) == labels]
    return found


def value(meters: Meters, name: str, **labels: str) -> float:
    return by_name(meters, name, **labels).value


def test_counters_show_from_the_start_and_others_when_set() -> None:
    meters = Meters()
    names = {sample.name for sample in meters.read()}
    assert names == {meter.name for meter in METERS.values() if meter.kind == "counter"}
    assert all(sample.value == 0 for sample in meters.read())
    meters.set("unikv_arena_bytes", 0)
    meters.observe("unikv_ticket_seconds", 0.0, call="load")
    assert {s.name for s in meters.read()} - names == {"unikv_arena_bytes", "unikv_ticket_seconds"}


def test_counts_add_up_and_gauges_do_not() -> None:
    meters = Meters()
    meters.count("unikv_loads_total", outcome="whole")
    meters.count("unikv_loads_total", by=2, outcome="whole")
    meters.count("unikv_loads_total", outcome="part")
    meters.count("unikv_read_bytes_total", by=1 << 62)
    meters.count("unikv_read_bytes_total", by=1)
    meters.set("unikv_arena_used_bytes", 7)
    meters.set("unikv_arena_used_bytes", 5)
    assert value(meters, "unikv_loads_total", outcome="whole") == 3
    assert value(meters, "unikv_loads_total", outcome="part") == 1
    assert value(meters, "unikv_loads_total", outcome="none") == 0
    assert value(meters, "unikv_read_bytes_total") == (1 << 62) + 1
    assert value(meters, "unikv_arena_used_bytes") == 5


def test_two_meters_share_nothing() -> None:
    one, other = Meters(), Meters()
    one.count("unikv_pages_loaded_total")
    one.observe("unikv_source_free_seconds", 1.0)
    assert value(other, "unikv_pages_loaded_total") == 0
    assert all(s.name != "unikv_source_free_seconds" for s in other.read())


@given(st.lists(st.floats(0, 100), max_size=50))
def test_each_duration_is_in_the_bucket_that_it_fits(durations: list[float]) -> None:
    meters = Meters()
    for seconds in durations:
        meters.observe("unikv_stage_seconds", seconds, stage="get")
    if not durations:
        return
    sample = by_name(meters, "unikv_stage_seconds", stage="get")
    assert sum(sample.counts) == len(durations)
    assert sample.value == pytest.approx(sum(durations))
    for n, bound in enumerate(BOUNDS):
        assert sum(sample.counts[: n + 1]) == sum(seconds <= bound for seconds in durations)


def test_label_order_makes_no_new_series() -> None:
    meters = Meters()
    before = len(meters.read())
    for _ in range(2):
        meters.count("unikv_io_orders_total", verb="get", outcome="ok")
        meters.count("unikv_io_orders_total", outcome="ok", verb="get")
    assert value(meters, "unikv_io_orders_total", verb="get", outcome="ok") == 4
    assert len(meters.read()) == before


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: m.count("unikv_loads"), "'unikv_loads' is not declared: known are"),
        (lambda m: m.count("unikv_arena_bytes"), "counter 'unikv_arena_bytes' is not declared"),
        (lambda m: m.set("unikv_loads_total", 1, outcome="whole"), "gauge 'unikv_loads_total'"),
        (lambda m: m.observe("unikv_arena_bytes", 1), "histogram 'unikv_arena_bytes'"),
        (lambda m: m.count("unikv_loads_total"), r"labels \[\]: want \['outcome'\]"),
        (lambda m: m.count("unikv_pages_loaded_total", rank="0"), r"labels \['rank'\]: want \[\]"),
        (lambda m: m.count("unikv_loads_total", outcome="hit"), "outcome='hit': want one of"),
        (lambda m: m.count("unikv_pages_loaded_total", by=-1), "by=-1: want 0 or more"),
        (lambda m: m.count("unikv_pages_loaded_total", by=float("nan")), "by=nan"),
        (lambda m: m.observe("unikv_source_free_seconds", -0.1), "seconds=-0.1: want 0 or more"),
    ],
)
def test_what_is_not_declared_is_refused(call: Callable[[Meters], None], says: str) -> None:
    meters = Meters()
    before = meters.read()
    with pytest.raises(ValueError, match=says):
        call(meters)
    assert meters.read() == before


def test_no_count_is_lost_between_threads() -> None:
    meters = Meters()
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    seen: Counter[float] = Counter()

    def work() -> None:
        for _ in range(3000):
            meters.count("unikv_pages_loaded_total")
            meters.observe("unikv_source_free_seconds", 0.5)

    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for sample in meters.read():
                if sample.counts:  # a reader never sees half of an observation
                    seen[sample.value - 0.5 * sum(sample.counts)] += 1
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert value(meters, "unikv_pages_loaded_total") == 24_000
    assert by_name(meters, "unikv_source_free_seconds").value == 12_000
    assert set(seen) <= {0.0}


def test_a_finalizer_may_count_while_its_thread_does() -> None:
    meters = Meters()
    with meters._lock:  # as garbage collection in the middle of a count finds it
        meters.count("unikv_pages_loaded_total")
        meters.read()
    assert value(meters, "unikv_pages_loaded_total") == 1


def test_a_forked_child_counts_though_another_thread_held_the_lock() -> None:
    code = """
import os, signal, threading, time
from unikv.meters import Meters
meters = Meters()
meters.count("unikv_pages_loaded_total")
held, done = threading.Event(), threading.Event()
def hold():
    with meters._lock:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(10)
    meters.count("unikv_pages_loaded_total")
    meters.observe("unikv_source_free_seconds", 1.0)
    [total] = [s.value for s in meters.read() if s.name == "unikv_pages_loaded_total"]
    os._exit(int(total))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
done.set()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "2", done.stderr


def test_a_count_costs_a_microsecond_or_less() -> None:
    meters = Meters()
    calls = [
        lambda: meters.count("unikv_io_orders_total", verb="get", outcome="ok"),
        lambda: meters.observe("unikv_stage_seconds", 0.01, stage="get"),
        lambda: meters.set("unikv_arena_used_bytes", 5),
    ]
    for call in calls:
        # The best of many short turns: others use this machine. Twice the promise, for the same.
        assert min(timeit.repeat(call, number=200, repeat=50)) / 200 < 2e-6


def test_the_table_is_sound() -> None:
    for name, meter in METERS.items():
        assert name == meter.name
        assert name.startswith("unikv_")
        assert name.endswith("_total") == (meter.kind == "counter")
        assert (meter.kind == "histogram") <= (meter.unit == "seconds")
        assert f"_{meter.unit}" in name if meter.unit else "bytes" not in name
        assert meter.help
        assert not meter.help.endswith(".")
        assert not {"name", "by", "seconds", "value", "self"} & set(meter.labels)
        assert all(values and len(set(values)) == len(values) for values in meter.labels.values())
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert len(Meters()._all) < 250  # series, each a line or a histogram in every scrape


def test_a_meter_is_a_value() -> None:
    assert METERS["unikv_arena_bytes"] == Meter(
        "unikv_arena_bytes", "gauge", "Bytes of the arena", "bytes"
    )
    assert str(os.getpid()) not in repr(Meters())
