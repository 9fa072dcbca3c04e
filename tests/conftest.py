"""Fixtures and profiles of all tests. A skip is a failure where UNIKV_REQUIRE names its reason."""

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# The shipped contract asserts in a module that pytest would not rewrite by itself.
pytest.register_assert_rewrite("unikv.testing", "unikv.testing_ranges")

settings.register_profile("unikv", deadline=None, max_examples=60)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=120,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "unikv")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep all that was imported and collected out of the many collections that tests ask for.

    Each would take a tenth of a second beside torch, and find nothing there.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],  # noqa: ARG001 - the hook's name for it
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure when its marker is required: CI cannot go green by skipping."""
    report = yield
    required = set(filter(None, os.environ.get("UNIKV_REQUIRE", "").split(",")))
    named = required & {marker.name for marker in item.iter_markers()}
    if report.skipped and named and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"UNIKV_REQUIRE names {', '.join(sorted(named))}, yet: {report.longrepr}"
    return report
