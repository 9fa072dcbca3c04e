"""Prometheus: meters as the samples of a Prometheus registry. It counts nothing and serves nothing.

    collector = MetersCollector()
    collector.add(client.meters, rank="0")
    registry.register(collector)  # the caller's registry; nothing registers itself

Needs the extra ``prometheus``.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import TypeAlias

from unikv.errors import MissingExtraError
from unikv.meter_table import BOUNDS, METERS, Meter
from unikv.meters import Meters, Sample

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as error:
    if (error.name or "").partition(".")[0] != "prometheus_client":
        raise
    raise MissingExtraError(
        "unikv.prometheus needs prometheus_client, which is not installed: "
        "pip install 'unikv[prometheus]'",
        name=error.name,
    ) from error

_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_Labels: TypeAlias = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*\Z")
_TAKEN = {"le", *(label for meter in METERS.values() for label in meter.labels)}
_EDGES = (*map(floatToGoString, BOUNDS), "+Inf")


class MetersCollector(Collector):
    """A collector for `prometheus_client.CollectorRegistry.register`.

    Several meters, as of several clients in one process, go into one collector, told apart by
    labels.
    """

    def __init__(self) -> None:
        self._sources: dict[_Labels, Meters] = {}
        self._lock = Lock()

    def add(self, meters: Meters, **labels: str) -> None:
        """Export ``meters`` from now on, each of its series with ``labels`` beside its own.

        Raises:
            TypeError: ``meters`` are none: a client's are ``client.meters``.
            ValueError: a label's name is none, or one of the metrics' own; the labels are those of
                other meters here, or have other names than theirs.
        """
        if not isinstance(meters, Meters):
            raise TypeError(f"{type(meters).__name__} where meters are wanted: want client.meters")
        for name in labels:
            if not _NAME.match(name) or name in _TAKEN:
                raise ValueError(
                    f"label {name!r:.80}: want a name of [a-zA-Z0-9_] that begins with a letter "
                    f"and is none of {sorted(_TAKEN)}"
                )
        place = tuple(sorted((name, str(value)) for name, value in labels.items()))
        with self._lock:
            for other in self._sources:
                want = [name for name, _ in other]
                if [name for name, _ in place] != want:
                    raise ValueError(f"labels {sorted(labels)}: other meters here have {want}")
            if place in self._sources:
                raise ValueError(f"labels {dict(place)}: other meters here have the same")
            self._sources = {**self._sources, place: meters}  # who collects now keeps the old

    def remove(self, meters: Meters) -> None:
        """Export ``meters`` no longer; those that are not there are fine."""
        with self._lock:
            kept = [(place, other) for place, other in self._sources.items() if other is not meters]
            self._sources = dict(kept)

    def describe(self) -> Iterator[Metric]:
        """Yield every family without samples, so that a registry sees names taken twice."""
        return (_family(meter, []) for meter in METERS.values())

    def collect(self) -> Iterator[Metric]:
        """Yield every family that has samples."""
        sources = self._sources
        constant = [name for name, _ in next(iter(sources), ())]
        families = {
            meter.name: _family(meter, [*constant, *meter.labels]) for meter in METERS.values()
        }
        for place, meters in sources.items():
            for sample in meters.read():
                _enter(families[sample.name], place, sample)
        return (family for family in families.values() if family.samples)


def _family(meter: Meter, labels: Sequence[str]) -> _Family:
    """Return the metric without samples."""
    kinds: dict[str, type[_Family]] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[meter.kind](meter.name, meter.help, labels=labels, unit=meter.unit)


def _enter(family: _Family, place: _Labels, sample: Sample) -> None:
    """Add one sample to its family."""
    values = [value for _, value in (*place, *sample.labels)]
    if isinstance(family, HistogramMetricFamily):
        buckets = list(zip(_EDGES, accumulate(sample.counts), strict=True))
        family.add_metric(values, buckets, sample.value)
    else:
        family.add_metric(values, sample.value)
