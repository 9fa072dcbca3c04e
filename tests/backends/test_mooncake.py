"""MooncakeStore keeps the promises of a store, on a real master and owner. All of them."""

from collections.abc import Iterator

import pytest

from tests.servers.mooncake_cluster import MooncakeCluster, running, wipe
from unikv.backends.mooncake import MooncakeStore
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Store
from unikv.testing import StoreContract

pytestmark = pytest.mark.mooncake


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeCluster]:
    """Provide a master with a short lease: what was read can be deleted soon."""
    with running(tmp_path_factory.mktemp("mooncake"), size=128 << 20, lease_ms=500) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pairs(cluster: MooncakeCluster) -> Iterator[dict[bool, list[Store]]]:
    """Provide two stores without and with the HTTP server: a client takes a second to close."""
    options: dict[bool, dict[str, object]] = {False: {}, True: {"admin": cluster.admin}}
    pairs = {
        admin: [open_store(cluster.url(wait=1, **more)) for _ in range(2)]
        for admin, more in options.items()
    }
    yield pairs
    for store in [*pairs[False], *pairs[True]]:
        store.close()


class OnMooncake(StoreContract):
    """The promises, on one cluster that is emptied before each."""

    admin = False

    @pytest.fixture
    def store(self, pairs: dict[bool, list[Store]]) -> Store:
        """Provide an empty store."""
        store = pairs[self.admin][0]
        assert isinstance(store, MooncakeStore)
        wipe(store)
        return store

    @pytest.fixture
    def second(self, pairs: dict[bool, list[Store]]) -> Store:
        """Provide a second view of the same objects."""
        return pairs[self.admin][1]

    def test_a_closed_store_says_so(self, cluster: MooncakeCluster) -> None:  # type: ignore[override]
        super().test_a_closed_store_says_so(open_store(cluster.url()))


def refuses_to_list(self: object, store: Store) -> None:  # noqa: ARG001 - a method of a test class
    """The client cannot list, and says what it wants."""
    with pytest.raises(StoreError, match=r"cannot list.*admin="):
        store.list()


class TestMooncake(OnMooncake):
    """All promises but those of a listing, in whose place it is refused: the library has none."""

    lists = False
    test_B97_a_listing_shows_what_is_there = refuses_to_list  # type: ignore[assignment]  # noqa: N815
    test_list_narrows_by_prefix = refuses_to_list  # type: ignore[assignment]
    test_a_listing_may_be_left = refuses_to_list  # type: ignore[assignment]
    test_B98_a_listing_shows_objects_only = refuses_to_list  # type: ignore[assignment]  # noqa: N815


class TestMooncakeWithAdmin(OnMooncake):
    """Knowing the master's HTTP server it lists, and asks for sizes without leases."""

    admin = True
