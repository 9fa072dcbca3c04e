"""What obstore's texts mean: what is missing, and that credentials ran out."""

import pytest

from unikv.backends.s3_errors import Fault, explain_error
from unikv.backends.s3_url import S3Place

MISSING = (
    "Object at location x not found: Error performing GET {url} in 1ms - Server returned non-2xx "
    "status code: 404 Not Found: <Error><Code>NoSuchKey</Code></Error>\n\nDebug source: ..."
)
OURS = S3Place("unikv", endpoint="https://hosts.example.org/latest/meta-data")


@pytest.mark.parametrize(
    ("place", "url"),
    [
        (OURS, "https://hosts.example.org/latest/meta-data/unikv/p/x"),
        (S3Place("unikv", virtual=True), "https://unikv.s3.us-east-1.amazonaws.com/x"),
        (S3Place("unikv", endpoint="https://sts.example.org"), "https://sts.example.org/unikv/x"),
        (
            S3Place("unikv", endpoint="http://169.254.1.1", virtual=True),
            "http://unikv.169.254.1.1/x",
        ),
    ],
)
def test_a_missing_key_is_one_whatever_the_server_is_called(place: S3Place, url: str) -> None:
    assert explain_error(FileNotFoundError(MISSING.format(url=url)), place).fault is Fault.NO_KEY


def test_a_provider_that_fails_is_not_quoted() -> None:
    text = (
        "The operation lacked valid authentication credentials for path External AWS credential "
        "provider: RuntimeError: hunter2"
    )
    error = explain_error(OSError(text), OURS)
    assert "no credentials for" in str(error)
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("size", [0, 100, 10_000_000])
def test_a_text_of_any_size_becomes_a_short_one(size: int) -> None:
    error = explain_error(OSError("\x1b[31m" + "x" * size), OURS)
    assert len(str(error)) < 300
    assert str(error).isprintable()
