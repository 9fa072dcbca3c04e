"""RedisStore keeps the promises of a store on redis-server 7, also by TLS with an ACL."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.backends.test_redis import OnServer
from tests.servers.redis_server import RedisServer, redis_binary
from tests.servers.redis_tls import PASSWORD, RIGHTS, TlsServer
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Span
from unikv.testing import content

pytestmark = pytest.mark.redis_server


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(redis_binary(), tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    with TlsServer(redis_binary(), tmp_path_factory.mktemp("tls")) as server:
        yield server


class TestRedis7(OnServer):
    @pytest.fixture(autouse=True)
    def use(self, plain: RedisServer) -> None:
        self.url = plain.url


class TestRedisTls(OnServer):
    @pytest.fixture(autouse=True)
    def use(self, tls: TlsServer) -> None:
        self.url = tls.url


def bare(server: TlsServer) -> str:
    """Return the address of a server, with nobody's name."""
    return f"127.0.0.1:{server.port}"


def test_a_certificate_of_a_stranger_is_refused(tls: TlsServer) -> None:
    """Neither the system's authorities nor another one vouch for it."""
    for ending in ("", f"&ca_certs={tls.stranger}"):
        with pytest.raises(StoreError, match="its certificate is not trusted") as caught:
            open_store(f"rediss://{bare(tls)}/0?timeout=2{ending}")
        assert "ca_certs=" in str(caught.value)
        assert not caught.value.retryable


def test_a_certificate_for_another_name_is_refused(tls: TlsServer) -> None:
    """It is for 127.0.0.1: by another name of the same host it is not the server's."""
    url = tls.url.replace("@127.0.0.1:", "@localhost:")
    with pytest.raises(StoreError, match="its certificate is not trusted"):
        open_store(url)
    store = open_store(f"{url}&check_hostname=0")
    assert store.put([Item("by_name", [b"x"])]).ok
    store.close()


def test_tls_and_plain_text_do_not_meet(tls: TlsServer, plain: RedisServer) -> None:
    with pytest.raises(StoreError, match=r"connect to 127\.0\.0\.1"):
        open_store(f"redis://{bare(tls)}/0?connect_timeout=1")
    with pytest.raises(StoreError, match=r"within 1 s \(does it speak TLS\?\)"):
        open_store(f"rediss://127.0.0.1:{plain.port}/0?connect_timeout=1")


def test_the_rights_of_the_docs_suffice_and_no_more_is_done(tls: TlsServer) -> None:
    """The contract ran as this user; outside of its prefix it can do nothing."""
    docs = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    assert RIGHTS in docs
    store = open_store(f"{tls.url}&prefix=other:")
    (error,) = store.put([Item("key", [b"VALUE"])]).errors.values()
    assert "the user has no right to the command or to the key (ACL) (NOPERM)" in str(error)
    assert not error.retryable
    assert PASSWORD not in f"{store} {error}"
    store.close()


def test_recency_is_touched_where_the_server_knows_no_better(plain: RedisServer) -> None:
    """Redis 7.0 has no CLIENT NO-TOUCH: it is asked for once, then never again."""
    store = open_store(plain.url)
    assert store.put([Item("key", [b"x"])]).ok
    with redis.Redis(port=plain.port) as client:
        client.config_resetstat()
        for _ in range(4):
            assert store.stat(["key", "gone"]) == [1, None]
        assert client.info("errorstats") == {"errorstat_ERR": {"count": 1}}
    store.close()


def test_a_large_object_goes_through_tls(tls: TlsServer) -> None:
    """Many records, many pieces, many views."""
    data = content("large", 20_000_003)
    into = bytearray(len(data))
    view = memoryview(into)
    store = open_store(tls.url)
    pieces = [data[:10], data[10:5_000_000], data[5_000_000:]]
    assert store.put([Item("large", pieces)], replace=True).ok
    cuts = [0, 1, 100_000, 100_000, 20_000_003]
    views = [view[start:stop] for start, stop in itertools.pairwise(cuts)]
    assert store.get([Span("large", 0, len(data), views)]).ok
    assert into == data
    store.close()


def test_size_classes_of_jemalloc_are_as_the_docs_say(plain: RedisServer) -> None:
    """A little above a power of two costs a quarter more."""
    sizes = {"even": 1 << 20, "below": (1 << 20) - 64}
    with redis.Redis(port=plain.port) as client:
        for name, size in sizes.items():
            client.set(name, bytes(size))
        used = {name: client.memory_usage(name) for name in sizes}
        allocator = client.info("memory")["mem_allocator"]
    if not allocator.startswith("jemalloc"):
        pytest.skip(f"this server's allocator is {allocator}")
    assert used["even"] > 1.24 * sizes["even"]
    assert used["below"] < 1.01 * sizes["below"]
