"""S3Server: an S3 server process on loopback, as tests start, hurt and end it. It knows no kind."""

import ctypes
import http.client
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias
from urllib.parse import urlencode, urlsplit

REGION = "us-east-1"
READY_S = 30.0
PR_SET_PDEATHSIG = 1

Process: TypeAlias = "subprocess.Popen[bytes]"


class Tls(NamedTuple):
    """What a server shows, and the authority that signed it: PEM files."""

    authority: Path
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return what a server in this process speaks TLS by."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


class S3Address(NamedTuple):
    """Where a bucket is, and with what keys it is reached; by TLS if an authority is named."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    authority: Path | None = None

    @classmethod
    def on(cls, port: int, tls: Tls | None = None) -> Self:
        """Return an address on loopback, with keys that no other server knows."""
        endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        keys = ("unikv-access", "unikv-secret-12345678")
        return cls(endpoint, *keys, "unikv", tls.authority if tls else None)

    def url(self, prefix: str, **options: object) -> str:
        """Return the URL of a store beneath a prefix of the bucket; it holds no keys."""
        trust = {"ca_certs": self.authority} if self.authority else {"allow_http": 1}
        query = urlencode({"endpoint": self.endpoint, "region": REGION, **trust, **options})
        return f"s3://{self.bucket}/{prefix}?{query}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which a client finds the keys."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:  # boto3 makes its classes while it runs
        """Return boto3's client of the server: the peer that tests compare with."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=REGION,
            verify=str(self.authority) if self.authority else None,
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 2},
                # Servers of MinIO's code ask for Content-MD5 where boto3 now sends a CRC32.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def create_bucket(self, name: str | None = None) -> None:
        """Make a bucket, this one's unless another is named."""
        self.client().create_bucket(Bucket=name or self.bucket)


class S3Server:
    """Holds the processes of a server; ends them by their ids.

    Args:
        address: where it is to listen, and the bucket that is made there.
        processes: starts it over what it stored, and returns its processes, the last one being
            that which speaks S3.
        forget: removes all that it stored; called while it is down.
    """

    def __init__(
        self,
        address: S3Address,
        processes: Callable[[], Sequence[Process]],
        forget: Callable[[], None],
    ) -> None:
        self.address = address
        self._processes = processes
        self._forget = forget
        self._running: Sequence[Process] = ()

    def start(self) -> None:
        """Start it, empty, and make the bucket."""
        self.empty()
        self.resume()
        self.address.create_bucket()

    def empty(self) -> None:
        """Remove all that it stored, its buckets too, while it is down."""
        assert not self._running
        self._forget()

    def resume(self) -> None:
        """Start it over what it stored before, and wait until it answers."""
        assert not self._running
        self._running = self._processes()
        wait_for_http(self.address.endpoint, self._running[-1])

    def kill(self) -> None:
        """End it as a crash would."""
        for process in reversed(self._running):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(20)
        self._running = ()

    def freeze(self) -> None:
        """Stop it where it stands: connections stay open and nothing answers."""
        process = self._running[-1]
        process.send_signal(signal.SIGSTOP)
        # A busy machine takes a while to stop all its threads, which may answer meanwhile.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let it go on."""
        self._running[-1].send_signal(signal.SIGCONT)


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(
    command: Sequence[object], log: Path, environment: Mapping[str, str] | None = None
) -> Process:
    """Start a process that ends with this one; what it says goes to a file."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - one system call, no lock
        )


def wait_for_http(endpoint: str, process: Process, seconds: float = READY_S) -> None:
    """Wait until a server answers any request with anything."""
    until = time.monotonic() + seconds
    where = urlsplit(endpoint)
    assert where.hostname
    while True:
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        connection = _connection(where.scheme, where.hostname, where.port)
        try:
            connection.request("GET", "/")
            if connection.getresponse().status < 500:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        assert time.monotonic() < until, f"{endpoint} does not answer"
        time.sleep(0.05)


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=5)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # as it is: is it up?
    return http.client.HTTPSConnection(host, port, timeout=5, context=context)


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


_libc = ctypes.CDLL(None)
