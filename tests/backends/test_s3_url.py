"""What an s3:// URL and the environment say, and what a wrong one is told."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import S3Store

from unikv.backends import s3_url
from unikv.backends.s3_url import S3Place, place_of, url_text
from unikv.backends.url import parse_url
from unikv.errors import UrlError

if TYPE_CHECKING:
    from obstore.store import S3Config

NOTHING: Mapping[str, str] = {}


def place(text: str, environment: Mapping[str, str] = NOTHING) -> S3Place:
    return place_of(parse_url(text), environment)


def test_a_url_says_where_and_how() -> None:
    found = place(
        "s3://bucket/a/b/?endpoint=https://s3.example.org:9000/&region=eu-west-1&style=path"
        "&profile=cache&timeout=2.5&threads=4&anonymous=1&unsigned=1"
    )
    assert found == S3Place(
        bucket="bucket",
        prefix="a/b",
        endpoint="https://s3.example.org:9000",
        region="eu-west-1",
        profile="cache",
        virtual=False,
        anonymous=True,
        unsigned=True,
        allow_http=False,
        timeout_s=2.5,
        threads=4,
    )
    assert found.path("key") == "a/b/key"
    assert place("s3://bucket").path("key") == place("s3://bucket/").path("key") == "key"


def test_what_the_url_leaves_open_the_environment_says() -> None:
    environment = {
        "AWS_ENDPOINT_URL": "https://two",
        "AWS_ENDPOINT_URL_S3": "http://one:1",
        "AWS_REGION": "r",
        "AWS_DEFAULT_REGION": "d",
        "AWS_ALLOW_HTTP": "true",
    }
    found = place("s3://bucket", environment)
    assert (found.endpoint, found.region, found.allow_http) == ("http://one:1", "r", True)
    found = place("s3://bucket?endpoint=https://mine&region=x&allow_http=0", environment)
    assert (found.endpoint, found.region, found.allow_http) == ("https://mine", "x", False)
    found = place("s3://bucket")
    assert (found.endpoint, found.region, found.server) == (None, None, "AWS")


@pytest.mark.parametrize(
    ("text", "virtual", "endpoint"),
    [
        ("s3://bucket", True, None),
        ("s3://bucket.with.dots", False, None),
        ("s3://bucket?style=path", False, None),
        ("s3://bucket?endpoint=https://host:9/x", False, "https://host:9/x"),
        ("s3://bucket?endpoint=https://host:9/x&style=virtual", True, "https://bucket.host:9/x"),
    ],
)
def test_the_bucket_stands_in_the_path_or_in_the_host(
    text: str, virtual: object, endpoint: str | None
) -> None:
    found = place(text)
    assert found.virtual is virtual
    assert found.bucket_endpoint == endpoint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("s3://", "a bucket of 3 to 63 characters"),
        ("s3://ab", "a bucket of 3 to 63 characters"),
        ("s3://host:9000/bucket", "a host goes into endpoint="),
        ("s3://KEY:SECRET@bucket/p", "credentials into the environment"),
        ("s3://bucket/a//b", "between single slashes"),
        ("s3://bucket/../b", "none of them . or .."),
        ("s3://bucket/%0Ab", "printable"),
        ("s3://bucket/" + "x" * 900, "at most 863 bytes"),
        ("s3://bucket?endpoint=http://host", "say allow_http=1"),
        ("s3://bucket?endpoint=host:9000", r"want http\(s\)://host"),
        ("s3://bucket?endpoint=https://KEY:SECRET%40host", "without credentials"),
        ("s3://bucket?endpoint=https://host?SECRET", r"want http\(s\)://host"),
        ("s3://bucket?endpoint=https://u:SECRET%40exa%E2%84%80mple.org", "without credentials"),
        ("s3://bucket?endpoint=https://h:99999", "host:port"),
        ("s3://bucket?endpoint=https://h:0", "host:port"),
        ("s3://bucket?endpoint=https://[", "host:port"),
        ("s3://bucket?endpoint=https://[::1:9000", "host:port"),
        ("s3://bucket?endpoint=https://[zz]:1", "host:port"),
        ("s3://bucket?endpoint=https://[1.2]:1", "host:port"),
        ("s3://bucket?endpoint=https://127.1", "host:port"),
        ("s3://bucket?endpoint=https://a..b", "host:port"),
        ("s3://bucket?endpoint=https://h/a b", "host:port"),
        ("s3://bucket?endpoint=https://h/%C3%BC", "host:port"),
        ("s3://bucket?endpoint=https://h/a/../b", "host:port"),
        ("s3://bucket?endpoint=https://h%0A", "host:port"),
        ("s3://bucket?endpoint=https://h\u00a0", "host:port|control characters"),
        ("s3://bucket?region=a%0Ab", "region 'a.nb'.*as in eu-west-1"),
        ("s3://bucket?region=%C2%A0x", "region .*as in eu-west-1"),
        ("s3://bucket?region=" + "x" * 65, "region .*as in eu-west-1"),
        ("s3://bucket?endpoint=https://10.0.0.1&style=virtual", "no host .* want style=path"),
        ("s3://bucket?endpoint=https://[::1]:9&style=virtual", "no host .* want style=path"),
        ("s3://bu..et?endpoint=https://h&style=virtual", "no host .* bu..et.h: want style=path"),
        ("s3://bucket?style=dns", "want path or virtual"),
        ("s3://bucket?timeout=0", "a number from 0.1 to 3600"),
        ("s3://bucket?timeout=nan", "a number from 0.1 to 3600"),
        ("s3://bucket?threads=1.5", "a whole number from 1 to 256"),
        ("s3://bucket?threads=0", "a whole number from 1 to 256"),
        ("s3://bucket?secret_access_key=SECRET", "unknown option 'secret_access_key'"),
        ("s3://bucket?allow_http=yes", "want 1 or 0"),
    ],
)
def test_a_wrong_url_is_told_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(UrlError, match=says) as caught:
        place(text)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("name", s3_url.ENDPOINTS)
def test_an_endpoint_of_the_environment_is_checked_too(name: str) -> None:
    with pytest.raises(UrlError, match="without credentials") as caught:
        place("s3://bucket", {name: "https://u:SECRET@exa\u2100mple.org"})
    assert "SECRET" not in str(caught.value)
    with pytest.raises(UrlError, match="region 'a b', of the URL or AWS_REGION"):
        place("s3://bucket", {"AWS_DEFAULT_REGION": "a b"})


@given(text=st.text("htps:/.[]@019aB%?#_- \n\u2100\uff11", max_size=30).map("http://".__add__))
def test_what_is_taken_for_an_endpoint_is_one(text: str) -> None:
    """obstore takes it, and the parts of it are the same to all that look."""
    if s3_url.is_endpoint(text):
        parts = urlsplit(text)
        assert parts.hostname
        assert parts.username is None
        assert parts.port != 0
        assert not parts.query + parts.fragment
        config: S3Config = {
            "aws_endpoint_url_s3": text,
            "access_key_id": "a",  # or it would ask the machine for some
            "secret_access_key": "b",
            "region": "r",
        }
        store = S3Store("bucket", config=config)
        obstore.sign(store, "GET", "key", timedelta(seconds=9))


@given(
    prefix=st.lists(st.text("aZ09-_é%+&=? ", min_size=1), max_size=3).map("/".join),
    profile=st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1),
)
def test_a_url_opens_the_same_place_elsewhere(prefix: str, profile: str) -> None:
    from urllib.parse import quote

    text = f"s3://bucket/{quote(prefix)}?profile={quote(profile, safe='')}&endpoint=https://h:1"
    if profile.isprintable():
        url = parse_url(text)
        assert parse_url(url_text(url)) == url
        assert place(url_text(url)) == place(text)
        assert place(text).prefix == prefix
