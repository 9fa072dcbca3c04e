"""Loop: evicts beneath a root, a slice of work at a time, until told to end. It stores nothing.

It is the whole of a process that a writer starts (`file_evict_child`): beside a writer's busy
threads a thread that evicts would wait for the interpreter after each of its many small calls.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from unikv.backends.file_evict import Evictor
from unikv.backends.file_evict_claim import claim, holds
from unikv.backends.file_evict_ledger import Ledger, Reading
from unikv.backends.file_limits import Limits
from unikv.backends.file_temp import sweep

ROOT_FAILED = 3
"""Exit status where the root is gone, or its disk fails."""

_SLICE_S = 0.05  # of work under the lock, before the ledger is read anew
_REST = 3  # times a slice, between looks that nobody waits for
_POLL_S = (0.002, 0.5)
_BUSY_S = 0.01  # until a look at how far another process is
_SWEEP_S = 60.0
_PAUSES_S = (1.0, 60.0)  # after a slice that freed nothing; doubled up to
_SETTLE_S = 1.0  # until blocks that were freed are to be seen as free
_CLAIMS = 3


class Loop:
    """Keeps one root within one set of limits."""

    def __init__(self, root: str, limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self._ledger = Ledger(root, again=False)  # writers do, and start another
        self._evictor = Evictor(root, self._ledger)
        self._pause_s, self._paused_until = _PAUSES_S[0], 0.0
        self._promised, self._promised_until, self._lacked = 0, 0.0, 0
        self._swept = -_SWEEP_S
        self._begins = True
        self._checked = False
        self._usage, self._read_at = 0, time.monotonic()
        self._surveyed = 0  # usage when a cell was last looked at for nothing but its sake

    def run(self, ends: Callable[[float], bool]) -> None:
        """Work until ``ends``, which is asked with how long it may wait, says so.

        Raises:
            OSError: the root is gone, or its disk fails.
        """
        timeout = 0.0
        try:
            while not ends(timeout):
                timeout = self.turn()
        finally:
            self._ledger.close()
            with suppress(OSError), self._ledger.hold() as held:
                if held:
                    self._ledger.fold()

    def turn(self) -> float:
        """Do a little of what is to be done; return in how many seconds to look again."""
        reading = self._ledger.read()
        poll = self._poll(reading)
        need = self._limits.need(reading, self._lack())
        if time.monotonic() < self._paused_until:
            need = 0
        with self._ledger.hold() as held:
            if not held:
                return _BUSY_S if need else poll
            self._ledger.fold()
            if self._is_doubtful(reading, need):
                with suppress(OSError):  # a full disk: what is known is better than to wait
                    self._ledger.forget()
                return 0
            if not self._limits.believes(reading):
                self._evictor.survey(_SLICE_S)
                return 0 if need else _REST * _SLICE_S
            if need:
                self._sweep()
                return self._evict(need)
            if abs(reading.bytes - self._surveyed) > self._limits.share:
                self._surveyed = reading.bytes
                with suppress(OSError):
                    self._evictor.survey(0)  # one cell
            return poll

    def _evict(self, need: int) -> float:
        removed = self._evictor.evict(need, held=True, seconds=_SLICE_S)
        if removed.objects:
            self._promised += removed.bytes
            self._promised_until = time.monotonic() + _SETTLE_S
            with suppress(OSError):
                self._ledger.note_horizon(removed.age)
            self._pause_s = _PAUSES_S[0]
            return 0
        # Nothing that can go: to try again at once would be to spin.
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, _PAUSES_S[1])
        self._paused_until = time.monotonic() + pause
        return pause

    def _lack(self) -> int:
        """Return how many free bytes are missing, as if all that was removed were free already.

        A file that somebody reads keeps its blocks, and some file systems free them later.
        """
        lack = self._limits.lack(self._root)
        if time.monotonic() > self._promised_until:
            self._promised, self._lacked = 0, lack
        return min(lack, self._lacked - self._promised)

    def _poll(self, reading: Reading) -> float:
        """Return when to look again, if writers go on as since the last look: well in time."""
        now = time.monotonic()
        grown, passed = reading.bytes - self._usage, now - self._read_at
        self._usage, self._read_at = reading.bytes, now
        if grown <= 0 or self._limits.max_bytes is None:
            return _POLL_S[1]
        left = max(self._limits.max_bytes - reading.bytes, 0) / grown * passed
        return min(max(left / 4, _POLL_S[0]), _POLL_S[1])

    def _is_doubtful(self, reading: Reading, need: int) -> bool:
        """Return whether to look at the folders anew: at first, and before much is evicted.

        Stores without a bound count nothing, and bytes on a disk may say anything.
        """
        limit = self._limits.max_bytes
        wrong = limit is not None and (need > limit // 10 or reading.balance < -limit // 100)
        doubtful = self._begins or (wrong and not self._checked)
        self._begins, self._checked = False, doubtful or (wrong and self._checked)
        return doubtful

    def _sweep(self) -> None:
        """Remove what dead writers left, now and then."""
        now = time.monotonic()
        if now - self._swept >= _SWEEP_S:
            self._swept = now
            with suppress(OSError):  # foreign files in their place: usage counts them
                sweep(self._root)


def main(arguments: Sequence[str]) -> int:
    """Evict until standard input ends, the process that started this one did, or the claim is lost.

    What keeps it from its work it says on standard input, which is a socket.
    """
    root, *bounds = json.loads(arguments[0])
    limits = Limits(*bounds)
    parent = os.getppid()
    lock: int | None = None

    def ends(timeout: float) -> bool:
        assert lock is not None
        readable, _, _ = select.select([0], [], [], timeout)
        return bool(readable) or os.getppid() != parent or not holds(root, limits, lock)

    try:
        for _ in range(_CLAIMS):  # a writer that looks whether it is free holds it for a moment
            lock = claim(root, limits)
            if lock is not None:
                Loop(root, limits).run(ends)
                break
            time.sleep(_POLL_S[0])
    except OSError as error:
        with suppress(OSError):  # nobody listens any more
            os.write(0, f"{error!s:.300}".encode())
        return ROOT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
