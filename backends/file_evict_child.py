"""Child: the process that evicts, as the process that writes sees it. It evicts nothing itself.

One runs for all that share a root and limits: it holds a lock while it lives. It ends with
whoever started it; then the next writer starts another.
"""

import json
import socket
import subprocess
import time
from contextlib import suppress

from unikv.backends.file_evict_claim import claim, release
from unikv.backends.file_limits import Limits
from unikv.errors import SpecError
from unikv.interpreter import find_interpreter, search_path

_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from unikv.backends.file_evict_loop import main; sys.exit(main(sys.argv[1:]))"
)
_PAUSES_S = (1.0, 60.0)  # from start to start; doubled after one that failed, up to
_END_S = 3.0  # for a slice of its work, and then to be killed: its disk may hang
_KILLED_S = 1.0
_REASON = 400  # bytes


class Child:
    """Starts the process where nobody else runs it, and ends it."""

    def __init__(self, root: str, limits: Limits) -> None:
        self.fault: str | None = None
        """Why it does not run, where it should."""
        self._root = root
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None  # its standard input, on which it may say why
        self._pause_s, self._paused_until = _PAUSES_S[0], 0.0
        self._started = self._seen = 0.0  # when it was last started, and last seen alive

    def ensure(self) -> None:
        """Start the process, unless it runs: here or elsewhere. It does not wait for it.

        Where it cannot be started, `fault` says why, and writers evict by themselves.
        """
        now = time.monotonic()
        if self._process is not None and self._process.poll() is None:
            self._seen = now
            return
        if now < self._paused_until:
            return
        self._pause()
        try:
            lock = claim(self._root, self._limits)
            if lock is None:  # somebody else's
                return
            release(lock)
            self._process, self._started = self._start(), now
        except (OSError, SpecError, subprocess.SubprocessError) as error:
            self.fault = f"the process that evicts cannot be started: {error}"

    def end(self) -> None:
        """End the process, if this one started it, and wait for it, but not for long."""
        process, self._process = self._process, None
        if process is None:
            return
        self._hang_up()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # not even that ends a call to a dead disk
                process.wait(_KILLED_S)

    def abandon(self) -> None:
        """Let go of the parent's child in a forked process, so that the parent can end it."""
        process, self._process = self._process, None
        line, self._line = self._line, None
        if line is not None:
            line.close()  # and no more: the line is the parent's, too
        if process is not None:
            process.returncode = 0  # not ours to wait for

    def _hang_up(self) -> str:
        """Let the process see the end of its input; return what it said of why it ended."""
        line, self._line = self._line, None
        if line is None:
            return ""
        said = b""
        with line:
            with suppress(OSError):
                said = line.recv(_REASON, socket.MSG_DONTWAIT)
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        return said.decode(errors="replace")

    def _pause(self) -> None:
        """Note how the last process ended, and when the next may start."""
        process, self._process = self._process, None
        status = process.returncode if process is not None else None
        reason = self._hang_up()
        now = time.monotonic()
        if status:
            self.fault = f"the process that evicts ended with status {status}"
            self.fault += f": {reason}" if reason else ""
            # One that worked a good while before somebody killed it is no reason to wait longer.
            lived = self._seen - self._started > self._pause_s
            self._pause_s = _PAUSES_S[0] if lived else min(2 * self._pause_s, _PAUSES_S[1])
        else:
            self.fault = None
            self._pause_s = _PAUSES_S[0]
        self._paused_until = now + self._pause_s

    def _start(self) -> "subprocess.Popen[bytes]":
        arguments = json.dumps([self._root, *self._limits])
        start = _START.format(path=search_path())
        # Not a pipe: a forked child of ours may hold its other end, and only the end of a socket
        # can be told all the same.
        line, its = socket.socketpair()
        try:
            with its:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [find_interpreter(), "-c", start, arguments],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",  # a folder that may be removed meanwhile is not held
                    start_new_session=True,  # Ctrl-C is for the writer
                )
        except BaseException:
            line.close()
            raise
        self._line = line
        return process
