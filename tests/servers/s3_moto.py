"""moto's server: an S3 in memory that checks no signature but knows conditional puts, for tests."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.s3_server import Process, S3Address, S3Server, Tls, free_port, spawn

MOTO = Path(sys.executable).with_name("moto_server")


def installed() -> bool:
    """Whether the package is there."""
    return MOTO.exists()


@contextmanager
def moto(folder: Path, tls: Tls | None = None) -> Iterator[S3Server]:
    """Run moto, its log in a folder; the bucket ``unikv`` is there and empty."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    address = S3Address.on(port, tls)
    secure = ["-c", tls.certificate, "-k", tls.key] if tls else []

    def processes() -> list[Process]:
        return [spawn([MOTO, "-H", "127.0.0.1", "-p", port, *secure], folder / "moto.log")]

    server = S3Server(address, processes, lambda: None)  # what is in memory goes with the process
    server.start()
    try:
        yield server
    finally:
        server.kill()
