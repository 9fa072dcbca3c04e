"""The file of authorities that an s3:// URL or the environment names: a wrong one, and its cost."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from tests.backends.s3_open import open_s3
from tests.servers.s3_hostile import Handler, hostile
from tests.servers.s3_server import S3Address, Tls
from tests.servers.s3_tls import Authority
from unikv.errors import StoreError, UrlError
from unikv.registry import open_store
from unikv.store import Item, Outcomes, Span
from unikv.testing_data import FAILED


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Authority(tmp_path_factory.mktemp("authority")).certify()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3Address.on(0).environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _, __: None, "No such file or directory"),
        (lambda path, _: path.mkdir(), "Is a directory"),
        (lambda path, _: path.write_bytes(b""), "want certificates in PEM"),
        (lambda path, tls: path.write_bytes(tls.key.read_bytes()), "want certificates in PEM"),
        (lambda path, tls: path.write_bytes(der(tls)), "want certificates in PEM"),
        (lambda path, tls: path.write_bytes(pem(tls)[:300]), "want certificates in PEM"),
        (lambda path, tls: path.write_bytes(pem(tls) + pem(tls)[:300]), "is not whole"),
        (lambda path, tls: path.write_bytes(pem(tls)[:300] + pem(tls)), "is not whole"),
        (lambda path, tls: path.write_bytes(pem(tls) + block(b"AAAA")), "certificate 2 in it is"),
        (lambda path, _: path.write_bytes(block(b"\xff" * 9)), "certificate 1 in it is none"),
    ],
    ids=["gone", "folder", "empty", "key", "der", "cut", "second", "first", "none", "bytes"],
)
@pytest.mark.parametrize("named", ["ca_certs", "AWS_CA_BUNDLE"])
def test_a_file_without_certificates_is_told_when_the_store_is_opened(
    tls: Tls,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    make: Callable[[Path, Tls], object],
    says: str,
    named: str,
) -> None:
    path = tmp_path / "ca.pem"
    make(path, tls)
    url = "s3://bucket/p?endpoint=https://127.0.0.1:1"
    if named == "ca_certs":
        url += f"&ca_certs={path}"
    else:
        monkeypatch.setenv(named, str(path))
    with pytest.raises(StoreError, match=says) as caught:
        open_store(url)
    assert f"read the authorities in '{path}' (ca_certs= or AWS_CA_BUNDLE)" in str(caught.value)
    assert not caught.value.retryable
    assert "PRIVATE" not in str(caught.value)


def pem(tls: Tls) -> bytes:
    return tls.authority.read_bytes()


def der(tls: Tls) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem(tls).decode())


def block(body: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n" % body


def test_authorities_of_a_plain_endpoint_are_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the URL; those of the environment may be for others."""
    url = "s3://bucket/p?endpoint=http://127.0.0.1:1&allow_http=1"
    with pytest.raises(UrlError, match=r"option ca_certs: .* is not encrypted: want https://"):
        open_store(f"{url}&ca_certs=/etc/ca.pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/ca.pem")
    open_store(url).close()


def test_a_server_that_is_not_trusted_costs_a_call_one_handshake(
    tls: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one a key; and each key is told why."""
    shaken: list[object] = []
    keys = [f"k{i}" for i in range(40)]
    items = [Item(key, [b"x"]) for key in keys]
    with hostile(tls) as server:
        monkeypatch.setattr(server, "handle_error", lambda *asked: shaken.append(asked))
        store = open_s3(server.address, "p", ca_certs=Authority(tmp_path).pem, threads=1)
        calls: list[Callable[[], Outcomes]] = [
            lambda: store.get([Span(key, 0, 9, [memoryview(bytearray(9))]) for key in keys]),
            lambda: store.put(items),
            lambda: store.put(items, replace=True),
            lambda: store.delete(keys),
        ]
        for call in calls:
            outcomes = call()
            assert set(outcomes.codes) == {FAILED}
            for key, error in zip(keys, outcomes.errors.values(), strict=True):
                assert "is not signed by the authority of that name" in str(error)
                assert repr(key) in str(error)
                assert not error.retryable
        with pytest.raises(StoreError, match="is not signed by the authority of that name"):
            store.stat(keys)
        store.close()
    assert len(shaken) <= 5


def test_no_redirect_leads_out_of_tls(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even on the same host, which no fence keeps it on, nor where others may do without."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with hostile(tls) as server, hostile() as plain:
        plain.objects["p/k"] = b"EVILEVIL"

        def lead(asked: Handler) -> None:
            where = plain.address.endpoint + asked.path
            asked.answer(307, {"Location": where, "Content-Length": "0"})

        server.faults = dict.fromkeys(("GET", "HEAD", "LIST"), lead)
        store = open_s3(server.address, "p")
        view = memoryview(bytearray(8))
        assert list(store.get([Span("k", 0, 8, [view])]).codes) == [FAILED]
        with pytest.raises(StoreError):
            store.stat(["k"])
        with pytest.raises(StoreError, match="want the bucket's own region="):
            list(store.list())
        assert plain.requests == []
        store.close()
