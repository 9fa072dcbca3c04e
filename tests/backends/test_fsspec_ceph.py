"""FsspecStore keeps every promise on Ceph's gateway, through s3fs."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.backends.fsspec_s3_contract import FsspecS3Contract
from tests.servers import s3_ceph
from tests.servers.s3_server import S3Server

pytestmark = [
    pytest.mark.ceph,
    pytest.mark.skipif(find_spec("s3fs") is None, reason="s3fs is not installed"),
    pytest.mark.skipif(
        bool(s3_ceph.missing()), reason=f"not installed: {', '.join(s3_ceph.missing())}"
    ),
]


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_ceph.ceph(tmp_path_factory.mktemp("ceph")) as server:
        yield server


class TestCeph(FsspecS3Contract):
    """A server that checks signatures and heeds If-None-Match."""

    @pytest.fixture
    def server(self, ceph: S3Server) -> S3Server:
        return ceph
