"""RedisStore keeps the promises of a store: on Valkey by TCP and Unix socket, on a cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer, valkey_binary
from unikv.registry import open_store
from unikv.store import Store
from unikv.testing import StoreContract

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(valkey_binary(), tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(valkey_binary(), tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


class OnServer(StoreContract):
    """The contract; each test has keys of its own on the module's server."""

    url: str

    def open(self, folder: Path) -> Store:
        self.own = (
            f"{self.url}{'&' if '?' in self.url else '?'}prefix=unikv:{folder.parent.name[:50]}:"
        )
        return open_store(self.own)

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002
        return open_store(self.own)


class TestValkey(OnServer):
    @pytest.fixture(autouse=True)
    def use(self, server: RedisServer) -> None:
        self.url = server.url


class TestUnixSocket(OnServer):
    @pytest.fixture(autouse=True)
    def use(self, server: RedisServer) -> None:
        self.url = f"unix://{server.unix}?db=3"


class TestCluster(OnServer):
    @pytest.fixture(autouse=True)
    def use(self, cluster: RedisCluster) -> None:
        self.url = cluster.url
