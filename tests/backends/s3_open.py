"""Opens `S3Store`s for tests, the keys coming from the environment."""

from tests.servers.s3_server import S3Address
from unikv.backends.s3 import S3Store, open_url
from unikv.backends.url import parse_url


def open_s3(address: S3Address, prefix: str, **options: object) -> S3Store:
    """Open a store beneath a prefix of a bucket."""
    return open_url(parse_url(address.url(prefix, **{"timeout": 10, **options})))
