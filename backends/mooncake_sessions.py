"""Sessions: ranges of many objects after one question to the master. They know no `Span`.

The library keeps one session a key and client: here threads that read the same key share it. A
session lasts for one call of ours, far below the lease; the library itself refuses what outlived
the lease before it began or before it was done.
"""

from collections.abc import Sequence
from threading import Lock

from unikv.backends.mooncake_codes import TRANSFER_FAIL
from unikv.backends.mooncake_native import Native
from unikv.backends.mooncake_pace import Pace
from unikv.backends.mooncake_ranges import Columns


class Sessions:
    """The read sessions of one client."""

    def __init__(self, native: Native, pace: Pace) -> None:
        self._native = native
        self._pace = pace
        self._readers: dict[str, int] = {}
        self._lock = Lock()

    def read(self, columns: Columns) -> list[int]:
        """Read ranges of objects; return the bytes read of each, or its code."""
        native, readers = self._native, self._readers
        keys = columns.keys
        if not keys:
            return []
        with self._lock:
            for key in keys:
                readers[key] = readers.get(key, 0) + 1
        try:
            codes = native.batch_get_session_start(keys)
            rows = [row for row, code in enumerate(codes) if not code]
            if not rows:
                return codes
            found = self._transfer(columns.rows(rows))
            if len(rows) == len(keys):
                return found
            for row, code in zip(rows, found, strict=True):
                codes[row] = code
            return codes
        finally:
            # Under the lock, so that nobody counts himself in between: his session would end here.
            with self._lock:
                done = []
                for key in keys:
                    left = readers.pop(key) - 1
                    if left:
                        readers[key] = left
                    else:
                        done.append(key)
                native.batch_get_session_end(done)

    def _transfer(self, columns: Columns) -> list[int]:
        """Read ranges that a session is open on; return the bytes read of each object, or its code.

        Once the library waited for an owner that does not answer, no further range of that owner is
        asked for.
        """
        codes = self._pace.move(
            columns,
            lambda part: self._native.batch_get_into_multi_buffer_ranges(
                part.keys, part.pointers, part.sizes, part.offsets
            ),
        )
        if len(codes) == len(columns.keys):
            return codes
        owners = self._owners(columns.keys)
        keys = columns.keys[: len(codes)]
        dead = {owners.get(k) for k, code in zip(keys, codes, strict=True) if code == TRANSFER_FAIL}
        rest = range(len(codes), len(columns.keys))
        codes += [TRANSFER_FAIL] * len(rest)
        alive = [row for row in rest if owners.get(columns.keys[row]) not in dead]
        if alive:
            for row, code in zip(alive, self._transfer(columns.rows(alive)), strict=True):
                codes[row] = code
        return codes

    def _owners(self, keys: Sequence[str]) -> dict[str, str]:
        """Return whose memory objects are in."""
        found: dict[str, str] = {}
        for key, replicas in self._native.batch_get_replica_desc(keys).items():
            memory = [r.get_memory_descriptor() for r in replicas if r.is_memory_replica()]
            if memory:
                found[key] = memory[0].buffer_descriptor.transport_endpoint
        return found
