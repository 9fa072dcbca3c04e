"""S3Store by a proxy of the environment: what obstore asks and a listing go the same way."""

import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

pytest.importorskip("cryptography")

from tests.backends.s3_open import open_s3
from tests.servers.s3_hostile import hostile
from tests.servers.s3_server import S3Address
from tests.servers.s3_tls import Authority
from unikv.errors import StoreError

USER = "Basic " + b64encode(b"me:pass word").decode()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    for name, value in S3Address.on(0).environment.items():
        monkeypatch.setenv(name, value)


class Tunnel(StreamRequestHandler):
    """A proxy that knows CONNECT; whatever the host is called, it is the one server."""

    def handle(self) -> None:
        lines = [self.rfile.readline().decode().strip()]
        while lines[-1]:
            lines.append(self.rfile.readline().decode().strip())
        asked: list[list[str]] = self.server.asked  # type: ignore[attr-defined]
        asked.append(lines)
        with socket.create_connection(self.server.to) as far:  # type: ignore[attr-defined]
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=self.copy, args=(far, self.connection), daemon=True)
            back.start()
            self.copy(self.connection, far)
            back.join(5)

    def copy(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := here.recv(65536):
                there.sendall(data)
        with suppress(OSError):
            there.shutdown(socket.SHUT_WR)


@contextmanager
def tunnel(port: int) -> Iterator[tuple[str, list[list[str]]]]:
    class Proxy(ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        to = ("127.0.0.1", port)
        asked: list[list[str]] = []  # noqa: RUF012 - one proxy

    with Proxy(("127.0.0.1", 0), Tunnel) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{proxy.server_address[1]}", proxy.asked
        proxy.shutdown()
        thread.join()


def test_tls_goes_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = Authority(tmp_path).certify(hosts=["s3.example.org"])
    with hostile(tls) as server, tunnel(server.server_address[1]) as (proxy, asked):
        server.objects["p/key"] = b"data"
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:pass%20word@{proxy}")
        far = server.address._replace(endpoint="https://s3.example.org")
        store = open_s3(far, "p")
        assert store.stat(["key"]) == [4]
        assert [entry.key for entry in store.list()] == ["key"]
        store.close()
        assert len(asked) == 2
        for lines in asked:
            assert lines[0].startswith("CONNECT s3.example.org:443 HTTP/1.")
            assert USER in {line.partition(": ")[2] for line in lines}


def test_plain_requests_are_given_to_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile() as server:
        server.objects["p/key"] = b"data"
        monkeypatch.setenv("ALL_PROXY", server.address.endpoint.replace("//", "//me:pass%20word@"))
        store = open_s3(server.address._replace(endpoint="http://s3.example.org:9000"), "p")
        assert store.stat(["key"]) == [4]
        assert [entry.key for entry in store.list()] == ["key"]
        store.close()
        for request in server.requests:
            assert request.target.startswith("http://s3.example.org:9000/unikv")
            headers = {name.lower(): value for name, value in request.headers.items()}
            assert headers["proxy-authorization"] == USER
            assert headers["host"] == "s3.example.org:9000"


def test_a_proxy_of_another_kind_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with hostile() as server:
        monkeypatch.setenv("HTTP_PROXY", "gopher://me:hunter2@127.0.0.1:1")
        store = open_s3(server.address, "p", timeout=2)
        with pytest.raises(StoreError, match="the proxy that the environment names: want http"):
            list(store.list())
        monkeypatch.setenv("HTTP_PROXY", "http://me:hunter2@[")
        with pytest.raises(StoreError) as caught:
            list(store.list())
        assert "hunter2" not in str(caught.value)
        store.close()


@pytest.mark.parametrize(
    ("exempt", "goes"),
    [
        ("127.0.0.0/8", True),
        ("10.0.0.0/8, 127.0.0.1", True),
        ("*", True),
        ("10.0.0.0/8", False),
        ("::1", False),
        ("", False),
    ],
)
def test_hosts_that_need_no_proxy_are_the_same_for_a_listing(
    monkeypatch: pytest.MonkeyPatch, exempt: str, *, goes: bool
) -> None:
    """Python's own rules know no networks; obstore's do."""
    with hostile() as server:
        server.objects["p/key"] = b"data"
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", exempt)
        store = open_s3(server.address, "p", timeout=2)
        if goes:
            assert store.stat(["key"]) == [4]
            assert [entry.key for entry in store.list()] == ["key"]
        else:
            with pytest.raises(StoreError, match="cannot connect to"):
                store.stat(["key"])
            with pytest.raises(StoreError, match="cannot connect to"):
                list(store.list())
        store.close()
