"""The keyring asks for keys in time, once for all; what they sign, AWS's own code signs alike."""

import threading
import time
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends import s3_sign
from unikv.backends.s3_keyring import Aside, Keyring, NoKeysError
from unikv.backends.s3_sign import Keys, signed_get


def test_keys_are_asked_for_before_they_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now, fails, asked = [1000.0], [False], [0]
    monkeypatch.setattr(time, "time", lambda: now[0])

    def fetch(_: float) -> Keys:
        asked[0] += 1
        if fails[0]:
            raise NoKeysError("gone", silent=True)
        return Keys(f"key{asked[0]}", "secret", None, now[0] + 3600)

    ring = Keyring(fetch)
    assert [ring.keys(1).access for _ in range(3)] == ["key1"] * 3
    now[0] += 2990
    assert ring.keys(1).access == "key1"
    now[0] += 20
    assert ring.keys(1).access == "key2"
    now[0] += 3100
    fails[0] = True
    assert [ring.keys(1).access for _ in range(3)] == ["key2"] * 3  # it holds for minutes yet
    assert asked[0] == 3
    now[0] += 450
    with pytest.raises(NoKeysError, match="gone"):
        ring.keys(1)


def test_those_who_wait_for_keys_share_what_comes() -> None:
    asked: list[float] = []
    begin = threading.Barrier(5)

    def fetch(_: float) -> Keys:
        asked.append(time.monotonic())
        time.sleep(0.3)
        raise NoKeysError("gone", silent=True)

    ring = Keyring(fetch)
    errors: list[NoKeysError] = []

    def want() -> None:
        begin.wait()
        try:
            ring.keys(1)
        except NoKeysError as error:
            errors.append(error)

    threads = [threading.Thread(target=want) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1
    assert len(errors) == 5
    assert all(error.silent for error in errors)
    with pytest.raises(NoKeysError):
        ring.keys(1)
    assert len(asked) == 2  # who comes later asks again


def test_what_may_never_return_is_begun_once() -> None:
    begun, go = [0], threading.Event()

    def call() -> Keys:
        begun[0] += 1
        go.wait(20)
        return Keys("key", "secret")

    aside = Aside(call)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            aside.result(0.05)
    assert begun == [1]
    go.set()
    assert aside.result(5).access == "key"
    assert aside.result(5).access == "key"
    assert begun == [2]


@pytest.mark.parametrize(
    "keys", [Keys("a\n", "s"), Keys("a b", "s"), Keys("a", "s\n"), Keys("a", ""), Keys("", "s"),
             Keys("a", "s", "t\r\nx: y"), Keys("\u00e4", "s")]
)  # fmt: skip
def test_keys_that_no_header_can_hold_are_none(keys: Keys) -> None:
    assert not keys.sound
    with pytest.raises(NoKeysError, match="a space or a line break"):
        Keyring(lambda _: keys).keys(1)
    assert Keys("a", "any thing \u00e4").sound


# The signature


@given(
    prefix=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    token=st.sampled_from([None, "a/token+="]),
    path=st.sampled_from(["", "/bucket", "/a/b~c/bucket"]),
)
def test_aws_signs_alike(prefix: str, token: str | None, path: str) -> None:
    auth = pytest.importorskip("botocore.auth")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    query = {"list-type": "2", "prefix": prefix, "delimiter": "/", "Z": "", "a-b": "x"}
    now = datetime(2026, 11, 30, 1, 2, 3, tzinfo=UTC)
    keys = Keys("key", "secret", token)
    extra = {"x-amz-request-payer": "requester"}
    ours = signed_get(f"https://h:9{path}", query, keys, "eu-1", extra=extra, now=now)
    headers = {k.lower(): v for k, v in ours.headers.items() if k.lower() != "authorization"}
    text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    theirs = AWSRequest("GET", f"https://h:9{path or '/'}?{text}", headers=headers)
    theirs.context["timestamp"] = "20261130T010203Z"
    signer = auth.S3SigV4Auth(Credentials("key", "secret", token), "s3", "eu-1")
    signature = signer.signature(
        signer.string_to_sign(theirs, signer.canonical_request(theirs)), theirs
    )
    assert ours.headers["authorization"].endswith(f"Signature={signature}")
    assert "secret" not in f"{ours!r}{keys!r}"


def test_nothing_is_signed_without_keys() -> None:
    request = signed_get("http://h/b", {"a": "b c"}, None, "r")
    assert request.url == "http://h/b?a=b%20c"
    assert dict(request.headers) == {"Host": "h"}
    assert s3_sign.EMPTY.startswith("e3b0c442")
