"""A fork of the process that holds a client: a clear error there, and no harm to the parent."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.io_path.lab import alive, until

ROOT = Path(__file__).parents[2]

SCRIPT = """
import gc, json, os, signal, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.client.world import POISON
from tests.io_path.lab import *
from unikv.testing_faults import Rule

lab = Lab(Path(sys.argv[1]), sys.argv[2])
lab.fill()
rule = Rule("delay", verbs=("get",), keys=PAGES, seconds=30, while_file=lab.gate())
side = lab.side(lab.store(rule), deadline_s=10)
start(lab, side)
pages, slots = lab.world.pages, side.slots
said = {}

def fork(work, out=os._exit):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            text = json.dumps(work())
            os.write(write, text.encode())
            code = 0
        finally:
            out(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(text)

def errors():
    found = []
    for call in (
        lambda: side.client.load(pages, slots),
        lambda: side.client.save(pages, slots),
        lambda: side.client.match(pages),
        lambda: side.client.load_async(pages, slots),
        lambda: side.client.save_async(pages, slots),
        lambda: side.client.prefetch(pages),
    ):
        begun = time.monotonic()
        try:
            found.append(repr(call()))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        assert time.monotonic() - begun < 1
    return found
"""

SCENES = """
said["errors"] = fork(errors)
said["parent after errors"] = [side.client.load(pages, slots).pages, lab.world.holds(side, 6)]

def close():
    side.client.close()
    lab.sides.clear()
    globals().pop("side")
    gc.collect()
    return True

said["close"] = fork(close)
said["parent after close"] = side.client.load_async(pages, slots).result(10).pages

pid = os.fork()
if pid == 0:
    sys.exit(0)
said["exit"] = os.waitpid(pid, 0)[1]
said["parent after exit"] = side.client.load(pages, slots).pages

def own():
    mine = lab.side(lab.store(), deadline_s=10)
    report = mine.client.load(pages, mine.slots)
    right = lab.world.holds(mine, 6)
    mine.client.close()
    return [report.pages, right]

said["own"] = fork(own)
said["parent after own"] = side.client.load(pages, slots).pages

lab.shut()
ticket = side.client.load_async(pages, slots)
until(lab.befallen)
said["errors amid a load"] = len(fork(errors))

def ask():
    found = [ticket.done()]
    try:
        ticket.result(0.2)
    except Exception as error:
        found.append(type(error).__name__)
    ticket.cancel()
    return found

said["ask"] = fork(ask)
lab.open()
said["parent after ask"] = [ticket.result(10).pages, lab.world.holds(side, 6)]
said["restarts"] = meter(side, "unikv_io_process_restarts_total")

from tests.io_path.engines import serving
lab.shut()
ticket = side.client.load_async(pages, slots)
time.sleep(0.05)
socket = lab.io.removeprefix("host:")
servers = [io_pid(side)] if lab.io == "process" else serving(socket) if "host" in lab.io else []
assert servers or lab.io == "threads"
pid = os.fork()
if pid == 0:
    time.sleep(20)
    os._exit(0)
begun = time.monotonic()
side.client.close()
said["parent closes"] = time.monotonic() - begun < 1
end = time.monotonic() + 3
while any(map(alive, servers)) and time.monotonic() < end:
    time.sleep(0.01)
said["left"] = [server for server in servers if alive(server)]
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=["threads", "process", "host"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Play all scenes in one process that forks: what it says of each."""
    root = tmp_path_factory.mktemp("fork")
    io = f"host:{root}/io.sock" if request.param == "host" else request.param
    arguments = [sys.executable, "-W", "ignore", "-c", SCRIPT + SCENES, str(root), io]
    done = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_fork_is_told_to_make_its_own_client_and_the_parent_goes_on(said: Any) -> None:
    assert len(said["errors"]) == 6
    for text in said["errors"]:
        assert text.startswith("StoreError: this client was made in process")
        assert "make a new client" in text
    assert said["parent after errors"] == [6, True]


def test_a_fork_that_closes_and_forgets_its_copy_takes_nothing_from_the_parent(said: Any) -> None:
    assert said["close"]
    assert said["parent after close"] == 6
    assert said["restarts"] == 0


def test_a_fork_that_runs_its_exit_handlers_takes_nothing_from_the_parent(said: Any) -> None:
    assert (said["exit"], said["parent after exit"]) == (0, 6)


def test_a_fork_makes_a_client_of_its_own(said: Any) -> None:
    assert said["own"] == [6, True]
    assert said["parent after own"] == 6


def test_a_fork_amid_a_load_leaves_the_load_alone_and_does_not_hang(said: Any) -> None:
    assert said["errors amid a load"] == 6
    assert said["ask"] == [False, "TimeoutError"]
    assert said["parent after ask"] == [6, True]


def test_the_parent_can_close_while_a_fork_lives_on(said: Any) -> None:
    """The fork holds copies of all sockets: the I/O process ends, and fast, all the same."""
    assert said["parent closes"]
    assert said["left"] == []


def test_the_io_process_ends_with_its_engine_though_a_fork_lives_on(tmp_path: Path) -> None:
    """The engine is killed: a fork of it still has the other end of every socket."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-W", "ignore", "-c"),
            SCRIPT
            + """
pid = os.fork()
if pid == 0:
    time.sleep(20)
    os._exit(0)
print(json.dumps([io_pid(side), pid]), flush=True)
sys.stdin.read()
""",
            *(str(tmp_path), "process"),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    io_pid, child = json.loads(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        until(lambda: not alive(io_pid), 3)
    finally:
        os.kill(child, 9)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
