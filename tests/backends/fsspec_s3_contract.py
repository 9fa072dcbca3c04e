"""FsspecS3Contract: the promises of a store, asked of s3fs on one server. It starts no server."""

import secrets
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.servers.s3_server import S3Address, S3Server
from unikv.registry import open_store
from unikv.store import Store
from unikv.testing import StoreContract


def url_of(address: S3Address, prefix: str, *, secret: str = "", **options: object) -> str:
    """Return the URL of a store beneath a prefix."""
    settings = {
        "endpoint_url": address.endpoint,
        "key": address.access_key,
        "secret": secret or address.secret_key,
        **options,
    }
    query = "&".join(f"{name}={quote(str(text), safe='')}" for name, text in settings.items())
    return f"fsspec+s3://{address.bucket}/{prefix}?{query}"


class FsspecS3Contract(StoreContract):
    """Inherit it and give a fixture ``server``. Each test has a prefix of its own."""

    @pytest.fixture(autouse=True)
    def use(self, server: S3Server) -> None:
        self._url = url_of(server.address, secrets.token_hex(8))

    def open(self, folder: Path) -> Store:  # noqa: ARG002 - it needs none
        return open_store(self._url)

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002 - as above
        return open_store(self._url)
