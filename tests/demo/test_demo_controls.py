"""Negative controls: a demo that could not say no would prove nothing."""

from pathlib import Path

import pytest

from tests.demo.lab import Lab, rotate_heads

pytestmark = pytest.mark.demo

BEFORE_THE_LAST = -2  # a late page, so that little is left to compute behind it


def test_a_load_stops_before_rotated_payloads_and_names_slab_and_object(
    lab: Lab, folder: Path
) -> None:
    url = folder.as_uri()
    namespace, grid = lab.choose("tp3,pp2", "tp3,pp1")
    written = lab.write(namespace, "tp3,pp2", url)
    pages = lab.sample.pages
    at = len(pages) + BEFORE_THE_LAST
    keys = rotate_heads(namespace, pages, at, url, forge=False)
    report = lab.read(namespace, grid, "tp3,pp1", url, written=written, tokens=4)
    assert report.exit_status == 1
    assert not report.checks["kv_bitwise_equal"]
    assert [done.answer.pages for done in report.loaded] == [at] * 3
    # What was loaded before it is right, and nothing behind it was touched.
    assert report.differences == ()
    assert report.checks["other_slots_untouched"]
    assert report.checks["tokens_equal"]
    assert len(report.stops) == 3
    for stop, key in zip(report.stops, keys, strict=True):
        assert f"page {at} of {len(pages)}" in stop
        assert "slab 0" in stop
        assert key in stop


def test_forged_tags_get_past_the_load_and_the_bitwise_check_says_no(
    lab: Lab, folder: Path
) -> None:
    url = folder.as_uri()
    namespace, grid = lab.choose("tp3,pp2", "tp1,pp1")
    written = lab.write(namespace, "tp3,pp2", url)
    pages = lab.sample.pages
    at = len(pages) + BEFORE_THE_LAST
    rotate_heads(namespace, pages, at, url, forge=True)
    report = lab.read(namespace, grid, "tp1,pp1", url, written=written, tokens=4)
    assert report.stops == ()
    assert [done.answer.pages for done in report.loaded] == [len(pages)]
    assert not report.checks["kv_bitwise_equal"]
    assert report.exit_status == 1
    (difference,) = report.differences
    assert difference.startswith(f"rank tp0 pp0: page {at}, token 0, layer 0")


def test_forged_heads_on_every_page_change_the_tokens(lab: Lab, folder: Path) -> None:
    url = folder.as_uri()
    namespace, grid = lab.choose("tp3,pp1", "tp1,pp1")
    written = lab.write(namespace, "tp3,pp1", url)
    for at in range(len(lab.sample.pages)):
        rotate_heads(namespace, lab.sample.pages, at, url, forge=True)
    report = lab.read(namespace, grid, "tp1,pp1", url, written=written, tokens=16)
    assert not report.checks["tokens_equal"]
    assert report.exit_status == 1
