"""Child: the process that evicts, as the process that writes sees it. It evicts nothing itself.

One runs for all that share a root and limits: it holds a lock while it lives. It ends with
whoever started it; then the next writer starts another.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from unikv.backends.file_evict_claim import claim, release
from unikv.backends.file_limits import Limits
from unikv.errors import StoreError

_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from unikv.backends.file_evict_loop import main; sys.exit(main(sys.argv[1:]))"
)
_PAUSES_S = (1.0, 60.0)  # from start to start; doubled after one that failed, up to
_END_S = 10.0


class Child:
    """Starts the process where nobody else runs it, and ends it."""

    def __init__(self, root: str, limits: Limits) -> None:
        self.fault: str | None = None
        """Why it does not run, where it should."""
        self._root = root
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_s, self._paused_until = _PAUSES_S[0], 0.0
        self._started = self._seen = 0.0  # when it was last started, and last seen alive

    def ensure(self) -> None:
        """Start the process, unless it runs: here or elsewhere. It does not wait for it."""
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
        except OSError as error:
            self.fault = f"the process that evicts cannot be started: {error}"

    def end(self) -> None:
        """End the process, if this one started it, and wait for it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:  # its disk hangs
            process.kill()
            process.wait()

    def abandon(self) -> None:
        """Let go of the parent's child in a forked process, so that the parent can end it."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.returncode = 0  # not ours to wait for

    def _pause(self) -> None:
        """Note how the last process ended, and when the next may start."""
        process, self._process = self._process, None
        status = None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            status = process.returncode
        now = time.monotonic()
        if status:
            self.fault = f"the process that evicts ended with status {status}"
            # One that worked a good while before somebody killed it is no reason to wait longer.
            lived = self._seen - self._started > self._pause_s
            self._pause_s = _PAUSES_S[0] if lived else min(2 * self._pause_s, _PAUSES_S[1])
        else:
            self.fault = None
            self._pause_s = _PAUSES_S[0]
        self._paused_until = now + self._pause_s

    def _start(self) -> "subprocess.Popen[bytes]":
        # Who embeds Python may have told it where its interpreter is.
        from multiprocessing.spawn import get_executable

        arguments = json.dumps([self._root, *self._limits])
        path = [str(Path(place).absolute()) for place in sys.path]  # "" is where this one runs
        if getattr(sys, "frozen", False):
            raise StoreError("a frozen program has no interpreter to start")
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [get_executable(), "-c", _START.format(path=path), arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",  # a folder that may be removed meanwhile is not held
            start_new_session=True,  # Ctrl-C is for the writer
        )
