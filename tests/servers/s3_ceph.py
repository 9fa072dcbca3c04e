"""Ceph's object gateway over one node in memory, from Debian's packages, for tests.

It checks signatures, heeds If-None-Match and lists as S3 does: the server nearest to S3 that can be
installed. It takes apt: radosgw ceph-mon ceph-osd ceph-mgr ceph-common.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from tests.servers.s3_server import Process, S3Address, S3Server, free_port, spawn, wait_for_http

PROGRAMS = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph", "monmaptool", "radosgw", "radosgw-admin")
UP_S = 60.0

# Small replies wait 40 ms without tcp_nodelay. The gateway would insist on a secure link to the
# monitor, which there is none of without keys, unless ms_mon_client_mode says crc first.
CONFIGURATION = """[global]
fsid = {fsid}
mon host = {monitor}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
mon warn on pool no redundancy = false
osd crush chooseleaf type = 0
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
admin socket = ""
run dir = {folder}
log file = {folder}/$name.log
mon data = {folder}/mon
mgr data = {folder}/mgr
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 4294967296
osd memory target = 939524096
osd heartbeat grace = 3600
[client.rgw]
ms mon client mode = crc secure
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw enable usage log = false
"""


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class _Node:
    """One monitor, manager, store and gateway, made anew for every start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = S3Address.on(free_port())
        self._log = folder.with_suffix(".out")
        self._running: list[Process] = []

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("mon", "mgr", "osd", "rgw"):
            (self.folder / name).mkdir(parents=True)

    def start(self) -> list[Process]:
        """Start all of it, which takes some ten seconds, the gateway last."""
        self._running = []
        try:
            self._start()
        except BaseException:
            for process in self._running:
                process.kill()
                process.wait(20)
            raise
        return self._running

    def _start(self) -> None:
        fsid, store = uuid4(), uuid4()
        monitor = f"[v2:127.0.0.1:{free_port()},v1:127.0.0.1:{free_port()}]"
        port = self.address.endpoint.rpartition(":")[2]
        text = CONFIGURATION.format(fsid=fsid, monitor=monitor, folder=self.folder, port=port)
        (self.folder / "ceph.conf").write_text(text)
        monmap = self.folder / "monmap"
        self.run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitor, monmap)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        self._spawn("ceph-mon", "-i", "a", "-f")
        self._spawn("ceph-mgr", "-i", "x", "-f")
        # Both must have the same identity, else the store never goes up.
        self.run("ceph", "osd", "new", store)
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", store)
        self.run("ceph", "osd", "crush", "add", "osd.0", "1.0", "host=localhost", "root=default")
        self._spawn("ceph-osd", "-i", "0", "-f")
        until = time.monotonic() + UP_S
        while "1 up" not in self.run("ceph", "osd", "stat"):
            assert time.monotonic() < until, "the store does not go up"
            time.sleep(0.2)
        self._spawn("radosgw", "-f", "-n", "client.rgw")
        wait_for_http(self.address.endpoint, self._running[-1], UP_S)
        keys = (f"--access-key={self.address.access_key}", f"--secret={self.address.secret_key}")
        self.run("radosgw-admin", "user", "create", "--uid=unikv", "--display-name=unikv", *keys)

    def run(self, program: str, *arguments: object) -> str:
        """Run a program to its end; return what it says."""
        command = [str(word) for word in (program, *self._common(program), *arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=UP_S, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
        return done.stdout

    def _spawn(self, program: str, *arguments: object) -> None:
        command = (program, *self._common(program), *arguments)
        self._running.append(spawn(command, self._log))

    def _common(self, program: str) -> list[str]:
        if program == "monmaptool":
            return []
        flags = ["-c", f"{self.folder}/ceph.conf"]
        daemon = program in ("ceph-mon", "ceph-mgr", "ceph-osd", "radosgw")
        root = daemon and os.geteuid() == 0  # they would change to a user that cannot write here
        return [*flags, *(["--setuser", "root", "--setgroup", "root"] if root else [])]


class CephServer(S3Server):
    """The gateway, which can be told to be full."""

    def __init__(self, folder: Path) -> None:
        self._node = _Node(folder)
        super().__init__(self._node.address, self._node.start, self._node.forget)

    def limit_buckets(self, objects: int) -> None:
        """Let no bucket hold more than so many objects; -1 for as many as there are."""
        which = ("--quota-scope=bucket", "--uid=unikv")
        self._node.run("radosgw-admin", "quota", "set", *which, f"--max-objects={objects}")
        self._node.run("radosgw-admin", "quota", "enable", *which)


@contextmanager
def ceph(folder: Path) -> Iterator[CephServer]:
    """Run the gateway, its files in a folder that is its own; the bucket is there and empty."""
    server = CephServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
