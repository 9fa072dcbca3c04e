"""A redis-server with TLS alone and a user who may do what a store needs, and no more."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from urllib.parse import quote

import pytest

from tests.servers.redis_server import RedisServer

USER = "kv:writer"
PASSWORD = "s:e@c/r?e#t%"
RIGHTS = "+set +getrange +get +strlen +exists +unlink +scan ~unikv:*"


class TlsServer(RedisServer):
    """Listens for TLS alone, with a certificate for 127.0.0.1 of an authority of its own."""

    def __init__(self, binary: str, folder: Path, options: Sequence[str] = ()) -> None:
        super().__init__(binary, folder, options)
        self.authority = make_authority(folder)
        self.stranger = make_authority(folder / "stranger")
        make_certificate(folder)

    @property
    def url(self) -> str:
        user = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}"
        return f"rediss://{user}@127.0.0.1:{self.port}/0?ca_certs={quote(str(self.authority))}"

    @property
    def arguments(self) -> list[str]:
        plain = super().arguments
        at = plain.index("--port")
        return [
            *plain[:at],
            *("--port", "0", "--tls-port", str(self.port), *plain[at + 2 :]),
            *("--tls-cert-file", str(self.folder / "server.pem")),
            *("--tls-key-file", str(self.folder / "server.key")),
            *("--tls-ca-cert-file", str(self.authority)),
            *("--tls-auth-clients", "no"),
            *("--user", USER, "on", f">{PASSWORD}", *RIGHTS.split()),
        ]


def make_authority(folder: Path) -> Path:
    """Make an authority; return its certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    name = ("-subj", "/CN=an authority of this test")
    _openssl(folder, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", *name)
    return folder / "ca.pem"


def make_certificate(folder: Path) -> None:
    """Make the server's certificate, signed by the authority in the same folder."""
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1")
    out = ("-keyout", "server.key", "-out", "server.pem", "-subj", "/CN=a server of this test")
    _openssl(folder, "req", "-x509", *_KEY, *out, *signed)


_KEY = ("-newkey", "rsa:2048", "-nodes", "-days", "2")


def _openssl(folder: Path, *arguments: str) -> None:
    program = which("openssl")
    if program is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)
