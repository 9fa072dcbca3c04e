"""The way in to a host's I/O process: nobody waits there for another, and nothing stays behind."""

import fcntl
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import unikv.io_host
from tests.io_path.engines import Engine, serving
from tests.io_path.lab import Lab, alive, nothing_left, patient, start, until, within
from tests.io_path.staged import SlowToClose
from unikv.errors import SpecError, StoreError
from unikv.io_socket import join, leave
from unikv.store import Opener

HALVES = {
    "no byte": b"",
    "half a length": b"\x10\0",
    "a length": b"\x10\0\0\0",
    "half a message": b"\x10\0\0\0[1,",
}


@pytest.fixture
def lab(threads_lab: Lab) -> Lab:
    (threads_lab.root / "run").mkdir()
    threads_lab.io = f"host:{path(threads_lab)}"
    return threads_lab


def path(lab: Lab) -> str:
    return f"{lab.root}/run/io.sock"


def left_behind(lab: Lab) -> list[str]:
    return sorted(one.name for one in (lab.root / "run").iterdir())


@contextmanager
def locked(lab: Lab) -> Iterator[None]:
    """Hold the lock as a client does that was stopped on its way in."""
    with Path(f"{path(lab)}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def full_line(lab: Lab) -> Iterator[None]:
    """Listen as a process does that was stopped, with others before us in line."""
    Path(path(lab)).unlink(missing_ok=True)
    with ExitStack() as held:
        listener = held.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path(lab))
        listener.listen(0)
        for _ in range(2):
            end = held.enter_context(socket.socket(socket.AF_UNIX))
            end.settimeout(0)
            try:
                end.connect(path(lab))
            except BlockingIOError:
                break
        yield


IN_THE_WAY: Any = {"lock": locked, "line": full_line}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_whoever_is_in_the_way_costs_a_call_its_deadline_and_no_more(lab: Lab, what: str) -> None:
    lab.fill()
    side = lab.side(lab.store())
    start(lab, side)
    [pid] = serving(path(lab))
    with IN_THE_WAY[what](lab):
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))
        side.client._deadline_s = 0.4
        for _ in range(5):  # also behind the limit of starts
            with within(0.4):
                report = side.client.load(lab.world.pages, side.slots)
            assert report.pages == 0
            assert "does not let go" in str(report.stopped) or "nobody in" in str(report.stopped)
    patient(side)
    until(lambda: side.client.load(lab.world.pages, side.slots).pages == 6)


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_a_client_that_nobody_lets_in_cannot_be_made(
    lab: Lab, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unikv.io_host, "START_S", 0.3)

    def try_it() -> None:
        with pytest.raises(StoreError, match=r"io='host:/.*io.sock': (another|the I/O)"):
            lab.side(lab.store())

    with IN_THE_WAY[what](lab), nothing_left(), within(0.3):
        try_it()


def test_closing_a_client_that_nobody_lets_in_does_not_wait(lab: Lab) -> None:
    lab.fill()
    side = lab.side(lab.store(), deadline_s=20)
    start(lab, side)
    [pid] = serving(path(lab))
    with locked(lab):
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))
        ticket = side.client.load_async(lab.world.pages, side.slots)
        threading.Event().wait(0.2)
        with within(0.5):
            side.client.close()
        assert ticket.done()


@pytest.mark.parametrize("sent", HALVES)
def test_a_guest_that_is_stopped_in_the_middle_of_a_message_holds_up_nobody(
    lab: Lab, sent: str
) -> None:
    lab.fill()
    side = lab.side(lab.store())
    start(lab, side)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.connect(path(lab))
        stopped.sendall(HALVES[sent])
        with within(1.5):
            other = lab.side(lab.store())
            assert other.client.load(lab.world.pages, other.slots).pages == 6
            assert side.client.load(lab.world.pages, side.slots).pages == 6


def test_a_message_may_come_in_pieces(lab: Lab) -> None:
    """As of a client that was stopped amid it, and goes on."""
    side = lab.side(lab.store())
    start(lab, side)
    body = json.dumps([0, ["m", "f", []], [], 4096]).encode()
    message = struct.pack("<I", len(body)) + body
    with socket.socket(socket.AF_UNIX) as slow, Path("/dev/null").open() as file:
        slow.connect(path(lab))
        for n in range(len(message)):
            fds = [file.fileno()] if n in (0, 30) else []
            socket.send_fds(slow, [message[n : n + 1]], fds)
        slow.settimeout(3)
        assert slow.recv(1) == b""  # /dev/null is no arena, but all of it was heard
    assert side.client.load(lab.world.pages, side.slots).stopped  # nothing is stored


@pytest.mark.parametrize("body", [b"5", b"[]", b"{}", b'"x"', b"[1,2,3,4]", b"[" * 100_000])
@pytest.mark.parametrize("fds", [0, 1, 2])
def test_what_is_no_hello_hurts_nobody(lab: Lab, body: bytes, fds: int) -> None:
    lab.fill()
    side = lab.side(lab.store())
    start(lab, side)
    [pid] = serving(path(lab))
    held = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    with socket.socket(socket.AF_UNIX) as stranger, Path("/dev/null").open() as file:
        stranger.connect(path(lab))
        head = struct.pack("<I", len(body))
        socket.send_fds(stranger, [head], [file.fileno()] * fds)
        stranger.sendall(body)
        stranger.settimeout(3)
        assert stranger.recv(1) == b""
    until(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) == held)
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert serving(path(lab)) == [pid]


def test_a_store_that_is_slow_to_close_holds_up_no_other_guest(lab: Lab) -> None:
    lab.fill()
    two = lab.side(lab.store())
    start(lab, two)
    lab.shut()
    one = lab.side(SlowToClose(lab.url, lab.gate(), lab.told_file))
    start(lab, one)
    for worker in one.client._transfers.guard.crew._idle:
        worker.close()  # so that the guest itself is the last to end
    threading.Event().wait(0.3)
    one.client.close()
    until(lab.befallen)
    with within(1.5):
        three = lab.side(lab.store())
        assert three.client.load(lab.world.pages, three.slots).pages == 6


def test_whoever_reads_the_output_of_an_engine_does_not_wait_for_the_host(lab: Lab) -> None:
    """The engine that happens to come first starts the process, which others then keep alive."""
    with Engine(lab, lab.io) as engine:
        engine.do("save")
        side = lab.side(lab.store())
        start(lab, side)
        engine.kill()
        assert engine.process.stdout is not None
        with within(1):
            assert engine.process.stdout.read() == ""
    assert side.client.load(lab.world.pages, side.slots).pages == 6


OPENER = "from unikv.registry import open_store\nopen_it = open_store\n"


class Homemade(SlowToClose):
    """A store whose opener lies in the folder that its client happens to be in."""

    @property
    def opener(self) -> Opener:
        return Opener("homemade_opener", "open_it", self._arguments[:1])


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_an_opener_is_found_by_the_clients_own_path(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    lab.fill()
    if not first:
        start(lab, lab.side(lab.store()))
    (lab.root / "homemade_opener.py").write_text(OPENER)
    monkeypatch.chdir(lab.root)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    side = lab.side(Homemade(lab.url, lab.gate(), lab.told_file))
    monkeypatch.chdir("/")
    assert side.client.load(lab.world.pages, side.slots).pages == 6


def test_the_last_client_leaves_no_file_behind(lab: Lab) -> None:
    one, two = lab.side(lab.store()), lab.side(lab.store())
    for side in (one, two):
        start(lab, side)
    one.client.close()
    assert "io.sock" in left_behind(lab)
    two.client.close()
    until(lambda: left_behind(lab) == [], 3)


def test_the_last_engine_is_killed_and_no_file_stays(lab: Lab) -> None:
    with Engine(lab, lab.io) as engine:
        engine.do("save")
        engine.kill()
    until(lambda: left_behind(lab) == [], 3)


def test_what_a_killed_process_left_is_removed_by_the_next_one(lab: Lab) -> None:
    with lab.side(lab.store()).client as client:
        client.match(lab.world.pages)
        [pid] = serving(path(lab))
        os.kill(pid, signal.SIGKILL)
    assert "io.sock" in left_behind(lab)
    side = lab.side(lab.store())
    start(lab, side)
    side.client.close()
    until(lambda: left_behind(lab) == [], 3)


def test_a_process_waits_for_whoever_is_on_the_way_in(lab: Lab) -> None:
    """Its last guest leaves while another client holds the lock."""
    side = lab.side(lab.store())
    start(lab, side)
    [pid] = serving(path(lab))
    with locked(lab):
        side.client.close()
        threading.Event().wait(0.5)
        assert alive(pid)
    until(lambda: not alive(pid), 3)
    assert left_behind(lab) == []


def test_a_process_leaves_the_socket_of_another_alone(lab: Lab) -> None:
    side = lab.side(lab.store())
    start(lab, side)
    [pid] = serving(path(lab))
    Path(path(lab)).rename(f"{path(lab)}.moved")
    other = lab.side(lab.store())
    start(lab, other)
    side.client.close()
    until(lambda: not alive(pid), 3)
    assert "io.sock" in left_behind(lab)
    third = lab.side(lab.store())
    start(lab, third)
    assert len(serving(path(lab))) == 1


class Inn:
    """A process that serves a guest a byte each, and would always rather end."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.served = 0

    def open(self, listener: socket.socket) -> None:
        threading.Thread(target=self.run, args=(listener.dup(),)).start()

    def run(self, listener: socket.socket) -> None:
        ours = self.place.stat()
        listener.settimeout(0)
        while not self.serve_one(listener):
            pass
        while not leave(str(self.place), ours, lambda: self.serve_one(listener)):
            pass
        listener.close()

    def serve_one(self, listener: socket.socket) -> bool:
        try:
            end, _ = listener.accept()
        except BlockingIOError:
            return False
        end.sendall(b"!")
        end.close()
        self.served += 1
        return True


def test_nobody_who_joins_ends_up_with_a_process_that_is_just_leaving(tmp_path: Path) -> None:
    """Socket and lock come and go, a hundred times."""
    inn = Inn(tmp_path / "io.sock")
    heard: list[bytes] = []

    def come() -> None:
        for _ in range(100):
            with join(str(inn.place), inn.open, lambda: True) as end:
                end.settimeout(5)
                heard.append(end.recv(1))

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == [b"!"] * 400
    until(lambda: inn.served == 400, 3)
    until(lambda: list(tmp_path.iterdir()) == [], 3)


def refusal(lab: Lab, io: str) -> str:
    with pytest.raises(SpecError, match=r"io='host:/") as caught:
        lab.side(lab.store(), io=io)
    return str(caught.value)


PLACES: Any = {
    "too long": ("/" + "x" * 150 + "/io.sock", "want at most 107"),
    "no folder": ("/absent/io.sock", "No such file or directory; want the path of a socket"),
    "a file for a folder": ("/file/io.sock", "Not a directory; want the path of a socket"),
    "a folder": ("/folder", "a file that is no socket; want the path of a socket"),
    "a link to nowhere": ("/dangling/io.sock", "want the path of a socket"),
}


@pytest.mark.parametrize("what", PLACES)
def test_a_path_that_cannot_be_is_refused_and_nothing_stays(lab: Lab, what: str) -> None:
    where, message = PLACES[what]
    run = lab.root / "run"
    (run / "file").touch()
    (run / "folder").mkdir()
    (run / "dangling").symlink_to("nowhere")
    before = left_behind(lab)
    with nothing_left():
        assert message in refusal(lab, f"host:{run}{where}")
    assert left_behind(lab) == before


def test_a_folder_that_cannot_be_written_to_is_refused(lab: Lab) -> None:
    """Of the kernel's own file system: there not even root may make a file."""
    told = refusal(lab, "host:/sys/io.sock")
    assert "Permission denied; want the path of a socket in a folder that this user can" in told


@pytest.mark.parametrize("io", ["host:io.sock", "host:./io.sock", "host:", "host:~/io.sock"])
def test_a_path_that_is_not_absolute_is_refused(lab: Lab, io: str) -> None:
    with pytest.raises(SpecError, match=r"want 'threads', 'process' or 'host:/path/of/a.sock'"):
        lab.side(lab.store(), io=io)
