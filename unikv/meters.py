"""Meters: counters, gauges and histograms of one process. They know no exporter and no cause.

    meters.count("unikv_loads_total", outcome="whole")
    meters.observe("unikv_io_order_seconds", 0.012, verb="get")
    meters.set("unikv_arena_used_bytes", 1 << 20)

Names, labels and label values are those of `unikv.meter_table`.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import product
from threading import RLock
from typing import NamedTuple, TypeAlias
from weakref import WeakMethod

from unikv.meter_table import BOUNDS, METERS, Kind, Meter

_Labels: TypeAlias = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One series as it stood when it was read."""

    name: str
    labels: _Labels
    value: float  # of a histogram: the sum of what was observed, in seconds
    counts: tuple[int, ...] = ()  # of a histogram: observations by bucket, see `BOUNDS`


class _Series:
    """One metric with one choice of label values."""

    __slots__ = ("counts", "labels", "meter", "touched", "value")

    def __init__(self, meter: Meter, labels: _Labels) -> None:
        self.meter = meter
        self.labels = labels
        self.value: float = 0
        self.counts = [0] * (len(BOUNDS) + 1) if meter.kind == "histogram" else []
        self.touched = meter.kind == "counter"  # those count from 0; others show when they speak

    def sample(self) -> Sample:
        return Sample(self.meter.name, self.labels, self.value, tuple(self.counts))


class Meters:
    """What one process counts. Every call is safe from any thread, also from a finalizer.

    All series are made at the start, so that nothing grows. A forked child goes on with a copy.
    """

    def __init__(self) -> None:
        # Reentrant: garbage collection may run a finalizer that counts while this thread does.
        self._lock = RLock()
        self._pid = os.getpid()
        self._refresh: WeakMethod[Callable[[], None]] | None = None
        self._series: dict[Kind, dict[tuple[str, _Labels], _Series]] = {
            "counter": {},
            "gauge": {},
            "histogram": {},
        }
        for meter in METERS.values():
            for values in product(*meter.labels.values()):
                labels = tuple(zip(meter.labels, values, strict=True))
                self._series[meter.kind][meter.name, labels] = _Series(meter, labels)
        self._all = [series for kind in self._series.values() for series in kind.values()]
        self._counters = self._series["counter"]
        self._gauges = self._series["gauge"]
        self._histograms = self._series["histogram"]

    def __repr__(self) -> str:
        return f"Meters({len(self._all)} series)"

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add ``by``, which is never negative, to a counter.

        Raises:
            ValueError: no such counter, label or label value; or ``by`` is negative.
        """
        series = self._counters.get((name, tuple(labels.items())))
        if series is None:
            series = self._find("counter", name, labels)
        if not by >= 0:
            raise ValueError(f"{name}: by={by!r:.40}: want 0 or more, counters never fall")
        lock = self._lock
        if not lock.acquire(blocking=False):
            lock = self._wait()
        try:
            series.value += by
        finally:
            lock.release()

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Add one duration to a histogram.

        Raises:
            ValueError: no such histogram, label or label value; or ``seconds`` is negative.
        """
        series = self._histograms.get((name, tuple(labels.items())))
        if series is None:
            series = self._find("histogram", name, labels)
        if not seconds >= 0:
            raise ValueError(f"{name}: seconds={seconds!r:.40}: want 0 or more")
        bucket = bisect_left(BOUNDS, seconds)
        lock = self._lock
        if not lock.acquire(blocking=False):
            lock = self._wait()
        try:
            series.counts[bucket] += 1
            series.value += seconds
            series.touched = True
        finally:
            lock.release()

    def set(self, name: str, value: float, **labels: str) -> None:
        """Say what a gauge shows now.

        Raises:
            ValueError: no such gauge, label or label value.
        """
        series = self._gauges.get((name, tuple(labels.items())))
        if series is None:
            series = self._find("gauge", name, labels)
        series.value = value  # one store: no lock is needed
        series.touched = True

    def before_read(self, refresh: Callable[[], None]) -> None:
        """Have a bound method, whose object is not kept alive, called before each `read`.

        For gauges of what changes without a call, as I/O does that ends late.
        """
        self._refresh = WeakMethod(refresh)

    def read(self) -> list[Sample]:
        """Return every counter, and each gauge and histogram that was ever set."""
        if self._refresh is not None and (refresh := self._refresh()) is not None:
            refresh()
        lock = self._wait()
        try:
            return [series.sample() for series in self._all if series.touched]
        finally:
            lock.release()

    def _wait(self) -> "RLock":
        """Take the lock; return it for its release."""
        if os.getpid() != self._pid:  # forked: who held the lock then may not be here
            self._pid = os.getpid()
            self._lock = RLock()
        lock = self._lock
        lock.acquire()
        return lock

    def _find(self, kind: Kind, name: str, labels: Mapping[str, str]) -> _Series:
        """Return the series, whatever the order of its labels.

        Raises:
            ValueError: there is none; says what there is.
        """
        meter = METERS.get(name)
        if meter is None or meter.kind != kind:
            known = sorted(meter.name for meter in METERS.values() if meter.kind == kind)
            raise ValueError(f"{kind} {name!r:.80} is not declared: known are {known}")
        if sorted(labels) != sorted(meter.labels):
            raise ValueError(f"{name}: labels {sorted(labels)}: want {sorted(meter.labels)}")
        for label, value in labels.items():
            if value not in meter.labels[label]:
                raise ValueError(
                    f"{name}: {label}={value!r:.80}: want one of {meter.labels[label]}"
                )
        found = self._series[kind][name, tuple((label, labels[label]) for label in meter.labels)]
        self._series[kind][name, tuple(labels.items())] = found
        return found
