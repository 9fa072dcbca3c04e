"""Credentials for a token: of containers, machines and web identities, and what keeps silent."""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.backends.s3_open import open_s3
from tests.io_path.lab import within
from tests.servers import s3_moto
from tests.servers.s3_hostile import Server, hostile
from unikv.errors import StoreError
from unikv.store import Item, Span
from unikv.testing_data import FAILED

GIVEN = {
    "AccessKeyId": "given-key",
    "SecretAccessKey": "hunter2-given",
    "Token": "given-token",
    "Expiration": "2099-12-30T00:00:00Z",
}
STS = (
    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
    "<AccessKeyId>given-key</AccessKeyId><SecretAccessKey>hunter2-given</SecretAccessKey>"
    "<SessionToken>given-token</SessionToken><Expiration>2099-12-30T00:00:00Z</Expiration>"
    "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
)


@pytest.fixture
def server() -> Iterator[Server]:
    with hostile() as server:
        server.objects.update({f"p/k{i}": b"data" for i in range(40)})
        yield server


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave an environment that names no credentials."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class Giver(ThreadingHTTPServer):
    """Gives credentials, or what a test says, and writes down who asked for what."""

    def __init__(self, answers: Callable[[str, str], tuple[int, str] | None]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, dict[str, str], str]] = []
        super().__init__(("127.0.0.1", 0), Asker)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Asker(BaseHTTPRequestHandler):
    server: Giver

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size).decode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, headers, body))
        answer = self.server.answers(self.command, self.path)
        if answer is None:
            time.sleep(20)
            return
        status, text = answer
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", text)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_PUT = do_POST = do_GET  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def giving(answers: Callable[[str, str], tuple[int, str] | None]) -> Iterator[Giver]:
    giver = Giver(answers)
    giver.daemon_threads, giver.block_on_close = True, False
    thread = threading.Thread(target=giver.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield giver
    finally:
        giver.shutdown()
        giver.server_close()
        thread.join()


def always(*answer: Any) -> Callable[[str, str], tuple[int, str] | None]:
    return lambda _, __: answer or None


def machine(verb: str, path: str) -> tuple[int, str]:
    if verb == "PUT":
        return (200, "machine-token")
    return (200, json.dumps(GIVEN)) if path.endswith("/the-role") else (200, "the-role")


def used(server: Server, **options: object) -> tuple[str, str | None]:
    """Get, then list; return key and token by which both were signed."""
    store = open_s3(server.address, "p", **options)
    view = memoryview(bytearray(4))
    outcomes = store.get([Span("k1", 0, 4, [view])])
    assert outcomes.ok, outcomes.errors
    assert len(list(store.list())) == 40
    store.close()
    found = set()
    for request in server.requests[-2:]:
        headers = {name.lower(): value for name, value in request.headers.items()}
        signed = re.search(r"Credential=([^/]+)/", headers.get("authorization", ""))
        assert signed
        found.add((signed[1], headers.get("x-amz-security-token")))
    [one] = found
    return one


# Who gives


@pytest.mark.parametrize("kind", ["none", "variable", "file", "both"])
def test_a_container_needs_no_token_file(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    if kind in ("variable", "both"):
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Basic dmFyaWFibGU=\n")
    if kind in ("file", "both"):
        (tmp_path / "token").write_text("of-a-file\n")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    with giving(always(200, json.dumps(GIVEN))) as giver:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{giver.url}/creds?a=b")
        assert used(server) == ("given-key", "given-token")
        monkeypatch.setenv("HTTP_PROXY", server.address.endpoint)  # is not for them
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert used(server) == ("given-key", "given-token")
        assert len(giver.asked) == 2  # one a store
        for verb, path, headers, _ in giver.asked:
            assert (verb, path) == ("GET", "/creds?a=b")
            wanted = {"none": None, "variable": "Basic dmFyaWFibGU="}.get(kind, "of-a-file")
            assert headers.get("authorization") == wanted


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://10.0.0.1/c"}, "want https://, or http://"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://["}, "want https://, or http://"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://u:hunter2@127.0.0.1/"}, "want https://"),
        ({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "@10.0.0.1/"}, "want https://, or http://"),
        (
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/nowhere/token",
            },
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE='/nowhere/token': No such file",
        ),
        (
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": "hunter2\r\nHost: x",
            },
            "AWS_CONTAINER_AUTHORIZATION_TOKEN: want one line of ASCII",
        ),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere/token", "AWS_ROLE_ARN": "arn:x"},
            "AWS_WEB_IDENTITY_TOKEN_FILE='/nowhere/token': No such file",
        ),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere/token"}, "want AWS_ROLE_ARN, too"),
        (
            {"AWS_METADATA_ENDPOINT": "http://[", "AWS_EC2_METADATA_DISABLED": ""},
            "AWS_METADATA_ENDPOINT: want http://host",
        ),
    ],
)
def test_variables_that_are_wrong_are_told_when_the_store_is_opened(
    server: Server, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError, match=re.escape(says)) as caught:
        open_s3(server.address, "p")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert server.requests == []


def test_a_machine_gives_those_of_its_role(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with giving(machine) as giver:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", giver.url)
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        assert used(server) == ("given-key", "given-token")
        assert [asked[:2] for asked in giver.asked] == [
            ("PUT", "/latest/api/token"),
            ("GET", "/latest/meta-data/iam/security-credentials/"),
            ("GET", "/latest/meta-data/iam/security-credentials/the-role"),
        ]
        assert giver.asked[-1][2]["x-aws-ec2-metadata-token"] == "machine-token"
        giver.answers = lambda *asked: (403, "") if asked[0] == "PUT" else machine(*asked)
        with pytest.raises(StoreError, match=r"the metadata service .* answered 403"):
            open_s3(server.address, "p").stat(["k1"])
        monkeypatch.setenv("AWS_IMDSV1_FALLBACK", "true")
        assert used(server) == ("given-key", "given-token")


def test_a_web_identity_takes_its_role(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("web.identity.token\n")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/kv")
    with giving(always(200, STS)) as giver:
        for wrong in ("http://10.0.0.1", "http://[", "ftp://127.0.0.1", giver.url + "/?a=b"):
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", wrong)
            with pytest.raises(StoreError, match="AWS_ENDPOINT_URL_STS: want https://host"):
                open_s3(server.address, "p")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", giver.url)
        assert used(server) == ("given-key", "given-token")
        [(verb, path, _, body)] = giver.asked
        assert (verb, path) == ("POST", "/")
        assert "WebIdentityToken=web.identity.token" in body
        assert "RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fkv" in body
        store = open_s3(server.address, "p")
        (tmp_path / "token").unlink()
        with pytest.raises(
            StoreError, match=r"no credentials .*IDENTITY_TOKEN_FILE='.*No such file"
        ):
            store.stat(["k1"])
        store.close()


@pytest.mark.s3
@pytest.mark.skipif(not s3_moto.installed(), reason="moto is not installed")
def test_a_real_token_service_gives_a_role(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with s3_moto.moto(tmp_path / "moto") as real:
        (tmp_path / "token").write_text("web.identity.token")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/kv")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", real.address.endpoint)
        key, token = used(server)
        assert key.startswith("ASIA")
        assert token
        store = open_s3(real.address, "p")
        assert store.put([Item("key", [b"data"])]).ok
        assert [entry.key for entry in store.list()] == ["key"]
        store.close()


# Who does not


@pytest.mark.parametrize("call", ["get", "stat", "put", "replace", "delete", "list"])
@pytest.mark.parametrize("kind", ["machine", "container", "identity"])
def test_who_keeps_silent_costs_a_call_one_timeout(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, call: str
) -> None:
    """Not one a key, nor one a thread."""
    with giving(always()) as giver:
        if kind == "machine":
            monkeypatch.setenv("AWS_METADATA_ENDPOINT", giver.url)
            monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        elif kind == "container":
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", giver.url)
        else:
            (tmp_path / "token").write_text("x")
            monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
            monkeypatch.setenv("AWS_ROLE_ARN", "arn:x")
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", giver.url)
        store = open_s3(server.address, "p", timeout=1, threads=4)
        keys = [f"k{i}" for i in range(40)]
        says = "did not answer in 1 s; want AWS_ACCESS_KEY_ID"
        with within(1.0):
            if call in ("stat", "list"):
                with pytest.raises(StoreError, match=says) as caught:
                    store.stat(keys) if call == "stat" else list(store.list())
                assert caught.value.retryable
            else:
                items = [Item(key, [b"x"]) for key in keys]
                outcomes = {
                    "get": lambda: store.get([Span(k, 0, 4, [view()]) for k in keys]),
                    "put": lambda: store.put(items),
                    "replace": lambda: store.put(items, replace=True),
                    "delete": lambda: store.delete(keys),
                }[call]()
                assert set(outcomes.codes) == {FAILED}
                for key, error in zip(keys, outcomes.errors.values(), strict=True):
                    assert says in str(error)
                    assert repr(key) in str(error)
                    assert error.retryable
        assert len(giver.asked) == 1
        assert server.requests == []
        giver.answers = {"identity": always(200, STS), "machine": machine}.get(
            kind, always(200, json.dumps(GIVEN))
        )
        assert store.stat(keys[:2]) == [4, 4]
        store.close()


def view() -> memoryview:
    return memoryview(bytearray(4))


@pytest.mark.parametrize(
    ("answer", "says", "retryable"),
    [
        ((404, ""), "answered 404", False),
        ((503, "hunter2"), "answered 503", True),
        ((302, "http://127.0.0.1:1/hunter2"), "answered 302", False),
        ((200, "hunter2"), "answers oddly: want JSON", False),
        ((200, "[" * 100_000), "answers oddly: want JSON", False),
        ((200, "[]"), "answers oddly: want JSON", False),
        ((200, '{"AccessKeyId": "hunter2"}'), "answers oddly: want AccessKeyId", False),
        ((200, json.dumps(GIVEN | {"Token": "a\nb"})), "answers oddly: want Acc", False),
        ((200, json.dumps(GIVEN | {"Token": 5})), "answers oddly: want Acc", False),
        ((200, json.dumps(GIVEN | {"Expiration": "soon"})), "answers oddly: want Acc", False),
        ((200, json.dumps(GIVEN | {"Expiration": "2020-01-01T00:00:00Z"})), "run out", False),
    ],
)
def test_who_gives_nothing_of_use_is_named(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    answer: tuple[int, str],
    says: str,
    retryable: object,
) -> None:
    with giving(always(*answer)) as giver:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", giver.url)
        store = open_s3(server.address, "p", threads=1)
        outcomes = store.get([Span(f"k{i}", 0, 4, [view()]) for i in range(9)])
        assert set(outcomes.codes) == {FAILED}
        for error in outcomes.errors.values():
            assert "no credentials for http" in str(error)
            assert f"the container's {giver.url.removeprefix('http://')} " in str(error)
            assert says in str(error)
            assert error.retryable is retryable
            assert "hunter2" not in str(error)
        assert len(giver.asked) == 1  # nobody else would be told otherwise in this call
        assert server.requests == []


def test_who_is_gone_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{port}/x")
    with pytest.raises(StoreError, match="cannot be asked: Connection refused") as caught:
        open_s3(server.address, "p").stat(["k1"])
    assert caught.value.retryable
