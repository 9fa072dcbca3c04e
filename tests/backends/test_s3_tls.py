"""S3Store over TLS: whom it trusts, what it refuses, and what it says. The servers are real."""

import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from urllib.parse import quote

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("torch")

from tests.backends.fsspec_s3_contract import url_of
from tests.backends.s3_open import open_s3
from tests.client.world import World
from tests.io_path.lab import within
from tests.servers import s3_juicefs, s3_moto
from tests.servers.s3_hostile import Server, hostile
from tests.servers.s3_server import S3Address, S3Server, Tls
from tests.servers.s3_tls import Authority, self_signed
from unikv import KVSpec, Topology
from unikv.backends import s3_url
from unikv.backends.s3 import S3Store
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Entry, Item, Span
from unikv.testing_data import FAILED, MISS, OK, content, read

KEYS = ["key0", "key1", "key2"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "a stranger")


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Tls:
    return authority.certify()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3Address.on(0).environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)


@contextmanager
def serving(tls: Tls) -> Iterator[Server]:
    """Run a server with objects in it."""
    with hostile(tls) as server:
        server.objects.update({f"p/{key}": content(key, 100) for key in KEYS})
        yield server


def outcome(store: S3Store, says: str = "", *, lists: bool = False) -> StoreError:
    """Try all that a store does, soon; return what `stat` raised. Nothing is tried twice.

    ``lists`` says that a listing is none of that.
    """
    items = [Item(key, [b"x"]) for key in KEYS]
    views = [memoryview(bytearray(9)) for _ in KEYS]
    with within(2.0):
        errors = [
            error
            for outcomes in (
                store.put(items),
                store.put(items, replace=True),
                store.get([Span(k, 0, 9, [view]) for k, view in zip(KEYS, views, strict=True)]),
                store.delete(KEYS),
            )
            for error in (outcomes.errors[at] for at in range(len(KEYS)))
        ]
        if not lists:
            with pytest.raises(StoreError) as listed:
                list(store.list())
            errors.append(listed.value)
        with pytest.raises(StoreError) as caught:
            store.stat(KEYS)
    assert not any(map(any, views))
    for error in (*errors, caught.value):
        assert says in str(error)
        assert not error.retryable
        assert str(error).isprintable()
        assert len(str(error)) < 500
    return caught.value


# Whom it trusts


@pytest.fixture(scope="module", params=["moto", "juicefs"])
def real(
    request: pytest.FixtureRequest, tls: Tls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    """Run what pip brings: Python's TLS, and that of MinIO's code."""
    module = {"moto": s3_moto, "juicefs": s3_juicefs}[request.param]
    if not module.installed():
        pytest.skip(f"{request.param} is not installed")
    run: Callable[[Path, Tls], Iterator[S3Server]] = getattr(module, request.param)
    with run(tmp_path_factory.mktemp(request.param), tls) as server:  # type: ignore[attr-defined]
        yield server


@pytest.mark.s3
def test_a_real_server_is_spoken_to_by_tls(real: S3Server, tls: Tls) -> None:
    prefix = secrets.token_hex(8)
    url = real.address.url(prefix)
    assert "https" in url
    assert "allow_http" not in url
    store = open_store(url)
    data = {key: content(key, 200_000 + at) for at, key in enumerate(KEYS)}
    assert store.put([Item(key, [body[:9], body[9:]]) for key, body in data.items()]).ok
    assert store.stat([*KEYS, "gone"]) == [*(len(body) for body in data.values()), None]
    for key, body in data.items():
        assert read(store, key, 5, 150_000) == body[5:150_000]
    assert [Entry(*entry)[:2] for entry in store.list()] == [(k, len(v)) for k, v in data.items()]
    client = real.address.client()
    body = client.get_object(Bucket=real.address.bucket, Key=f"{prefix}/key0")["Body"]
    assert body.read() == data["key0"]
    body.close()
    client.close()
    assert list(store.delete(["key0", "gone"]).codes) == [OK, MISS]
    store.close()
    assert tls.authority == real.address.authority


@pytest.mark.s3
def test_a_real_server_by_plain_http_or_without_its_authority(real: S3Server) -> None:
    """MinIO's answers 400 to plain HTTP, moto breaks off: both may pass or not, who can tell."""
    address = real.address._replace(authority=None)
    unknown = "is signed by an authority unknown to the system: want that one's PEM file in"
    outcome(open_s3(address, "p"), unknown)
    plain = address._replace(endpoint=address.endpoint.replace("https", "http"))
    store = open_s3(plain, "p", timeout=2)
    with within(2.0):
        outcomes = store.put([Item("key", [b"x"])])
        assert list(outcomes.codes) == [FAILED]
        assert "want https:// if it speaks TLS" in str(outcomes.errors[0])
        with pytest.raises(StoreError, match="want https:// if it speaks TLS"):
            store.stat(["key"])
    store.close()


@pytest.mark.parametrize("named", ["ca_certs", "AWS_CA_BUNDLE", "both", "SSL_CERT_FILE"])
def test_authorities_are_named_by_the_url_or_the_environment(
    tls: Tls, stranger: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    """A file may hold several, and what is none; those of the system go on to be trusted."""
    many = tmp_path / "many.pem"
    parts = (tls.key.read_bytes(), "# é\n".encode(), stranger.pem.read_bytes())
    many.write_bytes(b"".join(parts) + tls.authority.read_bytes())
    options = {"ca_certs": many} if named in ("ca_certs", "both") else {}
    if named == "SSL_CERT_FILE":
        monkeypatch.setenv("SSL_CERT_FILE", str(tls.authority))
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(stranger.pem))
    elif not options:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(many))
    elif named == "both":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none"))
    with serving(tls) as server:
        store = open_s3(server.address._replace(authority=None), "p", **options)
        assert store.stat(KEYS) == [100] * 3
        assert store.opener is not None
        [text] = store.opener.arguments
        again = open_store(str(text))  # as another process would
        assert read(again, "key1", 3, 9) == content("key1", 100)[3:9]
        store.close()
        again.close()


def test_a_client_saves_matches_and_loads_by_tls(tls: Tls, stranger: Authority) -> None:
    """With the wrong authority nothing is a miss, and nothing is tried again until the deadline."""
    spec = KVSpec.mha(layers=4, kv_heads=2, head_dim=4, dtype="int32", page_tokens=2)
    world = World(spec, pages_count=4, options={"heads_per_chunk": 1})
    with hostile(tls) as server:
        store = open_s3(server.address, "kv")
        assert sum(report.stored for report in world.save(store, Topology(tp=2))) > 0
        for side, report in world.load(store, Topology(pp=2)):
            assert report.pages == 4
            assert world.holds(side, 4)
        wrong = open_s3(server.address, "kv", ca_certs=stranger.pem)
        before = len(server.requests)
        side = world.side(wrong, Topology().rank(), filled=True)
        with within(2.0), side.client:
            match = side.client.match(world.pages)
            assert (match.pages, match.exact) == (0, False)
            saved = side.client.save(world.pages, side.slots)
            assert (saved.stored, len(saved.failed)) == (0, 8)  # two chunks a page
        assert len(server.requests) == before
        store.close()
        wrong.close()


# What it refuses


def test_a_server_of_an_unknown_authority_is_refused(tls: Tls, stranger: Authority) -> None:
    with serving(tls) as server:
        error = outcome(open_s3(server.address, "p", ca_certs=stranger.pem))
        assert f"unknown to '{stranger.pem}' and the system" in str(error)
        assert "ca_certs= or AWS_CA_BUNDLE" in str(error)
        assert server.requests == []  # no credentials went there
        outcome(open_s3(server.address._replace(authority=None), "p"), "unknown to the system")


def test_a_server_may_be_its_own_authority(tmp_path: Path) -> None:
    with serving(self_signed(tmp_path)) as server:
        assert open_s3(server.address, "p").stat(KEYS) == [100] * 3
        outcome(open_s3(server.address._replace(authority=None), "p"), "unknown to the system")


def test_an_authority_of_the_same_name_is_another(tls: Tls, tmp_path: Path) -> None:
    with serving(tls) as server:
        store = open_s3(server.address, "p", ca_certs=Authority(tmp_path).pem)
        outcome(store, "is not signed by the authority of that name")


MANY = tuple(f"host{number}.example.org" for number in range(600))


@pytest.mark.parametrize(
    ("hosts", "days", "ca", "says"),
    [
        (["127.0.0.1"], (-3.0, -1.0), False, "has expired ("),
        (["127.0.0.1"], (1.0, 3.0), False, "is not valid yet ("),
        (["s3.example.org"], (-1.0, 1.0), False, "is not for 127.0.0.1 but for s3.example.org"),
        (MANY, (-1.0, 1.0), False, "but for host0.example.org, host1.example.org, host2"),
        (["10.0.0.7"], (-1.0, 1.0), False, "is not for 127.0.0.1 but for 10.0.0.7"),
        ([], (-1.0, 1.0), False, "but for no host: want one with subjectAltName"),
        (["127.0.0.1"], (-1.0, 1.0), True, "is an authority's (CA:TRUE)"),
        (["status code: 404", "kind: Timeout"], (-1.0, 1.0), False, "but for no host"),
    ],
    ids=["expired", "early", "name", "names", "address", "nameless", "authority", "sly"],
)
def test_a_certificate_that_does_not_hold_is_refused(
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    hosts: list[str],
    days: tuple[float, float],
    ca: bool,  # noqa: FBT001 - as parametrized
    says: str,
) -> None:
    for name in ("ALLOW_INVALID_CERTIFICATES", "AWS_ALLOW_INVALID_CERTIFICATES"):
        monkeypatch.setenv(name, "true")
    with serving(authority.certify("wrong", hosts=hosts, days=days, ca=ca)) as server:
        # Python's own TLS, by which a listing comes, takes an authority's.
        whose = f"the certificate of {server.address.endpoint} "
        outcome(open_s3(server.address, "p"), whose, lists=ca)
        error = outcome(open_s3(server.address, "p"), says, lists=ca)
        assert ("clock set, which says 20" in str(error)) == ("valid" in says or "exp" in says)
        assert server.requests == []


def test_a_certificate_that_is_renewed_is_trusted_again(authority: Authority) -> None:
    with serving(authority.certify("old", days=(-3.0, -1.0))) as server:
        store = open_s3(server.address, "p")
        outcome(store, "has expired")
        new = authority.certify("new")
        server.tls.load_cert_chain(new.certificate, new.key)
        assert store.stat(KEYS) == [100] * 3
        store.close()


def test_a_server_that_wants_to_know_the_client_is_told_of(tls: Tls) -> None:
    """obstore has no way to show a certificate.

    By TLS 1.3 the server refuses after the handshake, and its word may be lost as it hangs up.
    """
    with serving(tls) as server:
        server.tls.maximum_version = ssl.TLSVersion.TLSv1_2
        server.tls.load_verify_locations(tls.authority)
        server.tls.verify_mode = ssl.CERT_REQUIRED
        outcome(open_s3(server.address, "p"), "a server that asks for no certificate of the client")


# TLS where none is spoken, and none where it is


def test_tls_to_a_plain_port_is_told_at_once() -> None:
    """As of http.server, nginx, MinIO: they answer in plain text."""
    with hostile() as server:
        address = server.address._replace(endpoint=server.address.endpoint.replace("http", "https"))
        outcome(open_s3(address, "p"), "does not speak TLS: want the port of it that does, or http")


@contextmanager
def port(answer: bytes | None) -> Iterator[int]:
    """Answer whatever comes with the same bytes, then close; None: with nothing, and stay."""

    class Same(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(9999)
            if answer is None:
                self.request.recv(1)
            else:
                self.request.sendall(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Same) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


REFUSED = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
ALERT = bytes([21, 3, 1, 0, 2, 2, 22])


@pytest.mark.parametrize(
    ("scheme", "says", "retryable", "answer"),
    [
        ("https", r"no connection to .* in 0\.5 s: want http://", True, None),
        ("https", "cannot connect to .*: want http://", True, b""),
        ("http", "broke off the connection: want https://", True, b""),
        ("http", "broke off the connection: want https://", True, ALERT),
        ("http", "want https://.* answered 400", False, REFUSED),
    ],
    ids=["silent", "closes", "plain-closes", "plain-alert", "plain-refused"],
)
def test_a_port_of_the_other_kind_is_told_within_seconds(
    monkeypatch: pytest.MonkeyPatch, scheme: str, says: str, retryable: object, answer: bytes | None
) -> None:
    monkeypatch.setattr(s3_url, "CONNECT_S", 0.5)
    with port(answer) as number:
        address = S3Address.on(0)._replace(endpoint=f"{scheme}://127.0.0.1:{number}")
        store = open_s3(address, "p", timeout=2)
        with within(0.5), pytest.raises(StoreError, match=says) as caught:
            store.stat(KEYS)
        assert caught.value.retryable is retryable
        store.close()


def test_a_machine_without_authorities_is_told_what_it_lacks(
    tls: Tls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    with serving(tls) as server:
        store = open_s3(server.address._replace(authority=None), "p")
        outcome(store, "want the package ca-certificates, or SSL_CERT_FILE, or ca_certs=")
        assert open_s3(server.address, "p").stat(KEYS) == [100] * 3


# The same by fsspec


@pytest.mark.s3
def test_fsspec_takes_an_authority_as_an_option_of_its_client(
    real: S3Server, tls: Tls, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs")
    url = url_of(real.address, secrets.token_hex(8))
    trust = quote(f'{{"verify":"{tls.authority}"}}')
    store = open_store(f"{url}&client_kwargs:={trust}")
    assert store.put([Item("key", [b"0123456789"])]).ok
    assert read(store, "key", 2, 7) == b"23456"
    store.close()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tls.authority))
    store = open_store(url)
    assert store.stat(["key"]) == [10]
    store.close()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(stranger.pem))
    with within(2.0), pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED") as caught:
        open_store(url)
    assert not caught.value.retryable
