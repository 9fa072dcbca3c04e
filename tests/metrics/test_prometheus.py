"""Prometheus: what a real registry makes of meters."""

import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

from unikv.meter_table import BOUNDS, METERS
from unikv.meters import Meters
from unikv.prometheus import MetersCollector


def exported(*sources: tuple[Meters, dict[str, str]]) -> CollectorRegistry:
    collector = MetersCollector()
    for meters, labels in sources:
        collector.add(meters, **labels)
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def parsed(registry: CollectorRegistry) -> dict[str, Metric]:
    return {family.name: family for family in families(generate_latest(registry).decode())}


def busy() -> Meters:
    """Meters of which every series was touched."""
    meters = Meters()
    for series in meters._all:
        labels = dict(series.labels)
        if series.meter.kind == "counter":
            meters.count(series.meter.name, 2, **labels)
        elif series.meter.kind == "gauge":
            meters.set(series.meter.name, 3, **labels)
        else:
            meters.observe(series.meter.name, 0.03, **labels)
    return meters


def test_every_metric_is_exported_as_it_is_declared() -> None:
    found = parsed(exported((busy(), {})))
    assert sorted(found) == sorted(name.removesuffix("_total") for name in METERS)
    for name, meter in METERS.items():
        family = found[name.removesuffix("_total")]
        assert family.type == meter.kind
        assert family.documentation == meter.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(meter.labels)


def test_values_are_those_of_the_meters() -> None:
    registry = exported((busy(), {"rank": "7"}))
    get = registry.get_sample_value
    assert get("unikv_loads_total", {"outcome": "whole", "rank": "7"}) == 2
    assert get("unikv_arena_bytes", {"rank": "7"}) == 3
    assert get("unikv_stage_seconds_sum", {"stage": "get", "rank": "7"}) == 0.03


def test_buckets_are_cumulative_and_end_at_infinity() -> None:
    meters = Meters()
    for seconds in (0.00001, 0.003, 0.003, 100.0):
        meters.observe("unikv_source_free_seconds", seconds)
    samples = parsed(exported((meters, {})))["unikv_source_free_seconds"].samples
    counts = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert [float(edge) for edge in counts] == [*BOUNDS, float("inf")]
    assert counts["1e-05"] == 1
    assert counts["0.0025"] == 1
    assert counts["0.005"] == counts["60.0"] == 3
    assert counts["+Inf"] == 4
    assert {s.value for s in samples if s.name.endswith("_count")} == {4}


def test_openmetrics_reads_it_with_units() -> None:
    registry = exported((busy(), {"rank": "0"}))
    text = exposition.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    found = {family.name: family for family in open_families(text)}  # type: ignore[no-untyped-call]
    assert found["unikv_arena_bytes"].unit == "bytes"
    assert found["unikv_read_bytes"].unit == "bytes"
    assert found["unikv_stage_seconds"].unit == "seconds"


def test_several_meters_are_told_apart_by_labels() -> None:
    one, other = Meters(), Meters()
    one.count("unikv_pages_loaded_total", 1)
    other.count("unikv_pages_loaded_total", 2)
    registry = exported((one, {"rank": "0"}), (other, {"rank": "1"}))
    get = registry.get_sample_value
    assert [get("unikv_pages_loaded_total", {"rank": rank}) for rank in ("0", "1")] == [1, 2]
    family = parsed(registry)["unikv_pages_loaded"]
    assert len(family.samples) == 2


def test_meters_come_and_go() -> None:
    collector = MetersCollector()
    registry = CollectorRegistry()
    registry.register(collector)
    assert generate_latest(registry) == b""
    meters = Meters()
    collector.add(meters)
    assert b"unikv_loads_total" in generate_latest(registry)
    collector.remove(meters)
    collector.remove(meters)
    assert generate_latest(registry) == b""
    collector.add(meters, rank="0")


def test_meters_that_cannot_be_told_apart_are_refused() -> None:
    collector = MetersCollector()
    collector.add(Meters(), rank="0")
    for labels, says in (
        ({"rank": "0"}, "other meters here have the same"),
        ({}, r"labels \[\]: other meters here have \['rank'\]"),
        ({"rank": "1", "pool": "a"}, r"other meters here have \['rank'\]"),
        ({"verb": "x"}, "label 'verb'"),
        ({"le": "x"}, "label 'le'"),
        ({"__x": "x"}, "label '__x'"),
        ({"é": "x"}, "label 'é'"),
        ({"a-b": "x"}, "label 'a-b'"),
    ):
        with pytest.raises(ValueError, match=says):
            collector.add(Meters(), **labels)
    assert len(collector._sources) == 1


def test_hostile_label_values_stay_values() -> None:
    registry = exported((busy(), {"pool": 'a"}\n\\x 1'}))
    labels = {"pool": 'a"}\n\\x 1'}
    [sample] = parsed(registry)["unikv_arena_bytes"].samples
    assert sample.labels == labels


def test_only_the_callers_registry_is_used() -> None:
    exported((busy(), {}))
    assert not any(family.name.startswith("unikv") for family in REGISTRY.collect())


def test_names_taken_twice_are_seen_at_registration() -> None:
    registry = exported((Meters(), {}))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(MetersCollector())


def test_a_registry_can_be_asked_for_some_names() -> None:
    registry = exported((busy(), {}))
    text = generate_latest(registry.restricted_registry(["unikv_arena_bytes"])).decode()
    assert [line for line in text.splitlines() if line[0] != "#"] == ["unikv_arena_bytes 3.0"]


def test_without_prometheus_client_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import unikv.prometheus"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: unikv.prometheus needs prometheus_client" in done.stderr
    assert "pip install 'unikv[prometheus]'" in done.stderr


def test_counting_needs_neither_prometheus_nor_torch() -> None:
    code = (
        "import sys, unikv.meters, unikv.events; "
        "print({'torch', 'numpy', 'prometheus_client'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("wrong", [None, 5, "x", object()])
def test_what_is_no_meters_is_refused_and_breaks_no_scrape(wrong: Any) -> None:
    collector = MetersCollector()
    with pytest.raises(TypeError, match=r"want client\.meters"):
        collector.add(wrong)
    registry = CollectorRegistry()
    registry.register(collector)
    generate_latest(registry)
