"""Store URLs are decoded once, checked in every part, and never show a secret in an error."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends.url import mask, parse_url
from unikv.errors import UrlError


@pytest.mark.parametrize(
    ("text", "scheme", "authority", "path", "options"),
    [
        ("memory://", "memory", "", "", {}),
        ("file:///var/kv", "file", "", "/var/kv", {}),
        ("FILE:///var/kv?", "file", "", "/var/kv", {}),
        ("file:///a%20b/%C3%A4%25?durable=1", "file", "", "/a b/ä%", {"durable": "1"}),
        ("s3://bucket/a/b?x=1&y=%26%3D", "s3", "bucket", "/a/b", {"x": "1", "y": "&="}),
        ("redis://u:p@host:1/0", "redis", "u:p@host:1", "/0", {}),
        ("fsspec+gs://b/p?e=", "fsspec+gs", "b", "/p", {"e": ""}),
    ],
)
def test_a_url_is_taken_apart(
    text: str, scheme: str, authority: str, path: str, options: dict[str, str]
) -> None:
    url = parse_url(text)
    assert (url.scheme, url.authority, url.path, url.options) == (scheme, authority, path, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "want scheme://"),
        ("file:/var/kv", "want scheme://"),
        ("//host/x", "want scheme://"),
        ("3s://host", "want scheme://"),
        ("file:///a#b", "write # as %23"),
        ("file:///a\nb", "control characters"),
        ("file:///a%2", "broken percent escape"),
        ("file:///a%zz", "broken percent escape"),
        ("file:///a%00b", "broken percent escape"),
        ("file:///a%ff", "broken percent escape"),
        ("file:///a?x=1&durable", "option 2 of it: want name=value"),
        ("s3://b/p?a=x@y", "write ? in a password as %3F, and @ in an option as %40"),
        ("file:///a?=1", "want name=value"),
        ("file:///a?durable=1&durable=1", "'durable' is given twice"),
        ("file:///a?durable=1&d%75rable=0", "'durable' is given twice"),
        ("file:///a?x=%", "broken percent escape"),
    ],
)
def test_a_broken_url_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UrlError, match=r"store URL") as caught:
        parse_url(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "redis://user:SECRET@host/0",
        "redis://user:SECRET@host/0?password=SECRET",
        "redis:/user:SECRET@host",
        "user:SECRET@host",
        "s3://key:SECRET@bucket/p?secret=SECRET#SECRET",
        "s3://key:a/SECRET@bucket/p",
        "s3://key:a@SECRET@bucket",
        "s3://key:SECRET@bucket/p?SECRET",
        "s3://key:SECRET@bucket/p?x=SECRET&x=SECRET",
        "s3://key:SECRET@bucket/%zz",
        "s3://key:SECRET@bucket/\n",
        "redis://user:SECRET#x@host/0",
        "redis://user:SECRET?x@host/0",
        "redis://user:SECRET?x=1@host/0",
        "redis://user:x#SECRET@host/0",
        "s3://bucket/p?secret=x@SECRET",
        "redis:/user:SECRET#x@host",
        "s3://bucket/p?SECRET",
        "s3://bucket/p?x=1&SECRET",
    ],
)
def test_nothing_shows_credentials(text: str) -> None:
    shown = [mask(text)]
    try:
        url = parse_url(text)
        shown += [url.shown, repr(url), str(url)]
        url.refuse_path()
    except UrlError as error:
        shown.append(str(error))
    for part in ("host", "options_except"):
        with suppress(UrlError, UnboundLocalError):
            getattr(url, f"refuse_{part}")()
    assert "SECRET" not in "".join(shown)


@given(st.text())
def test_any_text_is_a_url_or_a_url_error(text: str) -> None:
    try:
        url = parse_url(text)
    except UrlError:
        return
    assert "\0" not in url.path
    assert url.scheme == url.scheme.lower()


def test_flags_are_on_or_off() -> None:
    url = parse_url("file:///a?a=1&b=0&c=true&d=false&e=yes&f=")
    assert [url.flag(name) for name in "abcd"] == [True, False, True, False]
    assert [url.flag("z"), url.flag("z", default=True)] == [False, True]
    for name in "ef":
        with pytest.raises(UrlError, match=f"option {name}: want 1 or 0$"):
            url.flag(name)


def test_unknown_options_name_the_known() -> None:
    url = parse_url("file:///a?durible=1")
    with pytest.raises(UrlError, match="unknown option 'durible'; it takes direct, durable"):
        url.refuse_options_except("durable", "direct")
    with pytest.raises(UrlError, match="unknown option 'durible'; it takes none"):
        url.refuse_options_except()
