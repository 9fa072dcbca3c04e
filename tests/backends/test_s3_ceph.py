"""S3Store and FsspecStore keep the promises of a store on Ceph's gateway, the server nearest to S3.

One file, since the gateway takes ten seconds to start.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.backends.fsspec_s3_contract import FsspecS3Contract
from tests.backends.s3_contract import S3Contract
from tests.servers import s3_ceph
from tests.servers.s3_ceph import CephServer
from tests.servers.s3_server import S3Server
from unikv.store import Item, Store
from unikv.testing_data import FAILED, Keys, read

pytestmark = [
    pytest.mark.ceph,
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(s3_ceph.missing()), reason=f"not installed: {', '.join(s3_ceph.missing())}"
    ),
]


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CephServer]:
    with s3_ceph.ceph(tmp_path_factory.mktemp("ceph")) as server:
        yield server


class TestS3Ceph(S3Contract):
    """A server that checks signatures and heeds If-None-Match."""

    @pytest.fixture
    def server(self, ceph: S3Server) -> S3Server:
        return ceph

    def test_a_full_bucket_is_a_failure(self, ceph: CephServer, store: Store, keys: Keys) -> None:
        """What is there can be read and replaced; there is no use in trying again."""
        names = [keys.page(i) for i in range(4)]
        assert store.put([Item(name, [b"data"]) for name in names[:3]]).ok
        ceph.limit_buckets(3)
        try:
            outcomes = store.put([Item(names[3], [b"data"])])
            assert list(outcomes.codes) == [FAILED]
            assert "the store is full: " in str(outcomes.errors[0])
            assert not outcomes.errors[0].retryable
            assert read(store, names[0], 0, 4) == b"data"
            assert store.delete(names[:1]).ok
        finally:
            ceph.limit_buckets(-1)
        assert store.put([Item(names[3], [b"data"])]).ok


@pytest.mark.skipif(find_spec("s3fs") is None, reason="s3fs is not installed")
class TestFsspecCeph(FsspecS3Contract):
    """The same through s3fs."""

    @pytest.fixture
    def server(self, ceph: S3Server) -> S3Server:
        return ceph
