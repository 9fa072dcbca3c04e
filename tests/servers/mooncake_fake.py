"""FakeNative: Mooncake's client over a dict, with answers that a test puts in its mouth. No server.

It moves bytes between addresses as the library does, and remembers what memory it was shown.
"""

import ctypes
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from unikv.backends.mooncake import MooncakeStore
from unikv.backends.mooncake_native import DiskReplica, MemoryReplica, Rows
from unikv.backends.mooncake_url import settings_of
from unikv.backends.url import parse_url

INVALID, NOT_READY, NOT_FOUND, EXISTS = -600, -703, -704, -705


@dataclass(frozen=True)
class FakeMemory:
    """Where a replica lies, and how large it is."""

    size: int
    transport_endpoint: str = "owner"


@dataclass(frozen=True)
class FakeReplica:
    """A replica in memory."""

    buffer_descriptor: FakeMemory

    def is_memory_replica(self) -> bool:
        return True

    def is_disk_replica(self) -> bool:
        return False

    def get_memory_descriptor(self) -> MemoryReplica:
        return self

    def get_disk_descriptor(self) -> DiskReplica:
        raise NotImplementedError


@dataclass
class FakeNative:
    """A client whose objects are ``objects``. ``say`` makes one call answer otherwise."""

    objects: dict[str, bytes] = field(default_factory=dict)
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    registered: dict[int, int] = field(default_factory=dict)  # bytes, by address
    moved: list[tuple[int, int]] = field(default_factory=list)  # address and bytes
    closed: int = 0
    reading: set[str] = field(default_factory=set)
    writing: dict[str, bytearray] = field(default_factory=dict)
    answers: dict[str, deque[list[int]]] = field(default_factory=lambda: defaultdict(deque))
    before: dict[str, Callable[[], None]] = field(default_factory=dict)

    def say(self, call: str, *answers: list[int]) -> None:
        """Have the next calls of a name answer so, and do nothing."""
        self.answers[call].extend(answers)

    def named(self, call: str) -> list[tuple[str, ...]]:
        """Return the keys of all calls of a name."""
        return [keys for name, keys in self.calls if name == call]

    def register_buffer(self, buffer_ptr: int, size: int, /) -> int:
        if answer := self._answer("register_buffer", ()):
            return answer[0]
        self.registered[buffer_ptr] = size
        return 0

    def unregister_buffer(self, buffer_ptr: int, /) -> int:
        del self.registered[buffer_ptr]
        return 0

    def batch_get_replica_desc(self, keys: Sequence[str], /) -> Mapping[str, list[FakeReplica]]:
        if self._answer("batch_get_replica_desc", keys) is not None:
            return {}
        there = [key for key in keys if key in self.objects]
        return {key: [FakeReplica(FakeMemory(len(self.objects[key])))] for key in there}

    def batch_is_exist(self, keys: Sequence[str], /) -> list[int]:
        answer = self._answer("batch_is_exist", keys)
        return [int(key in self.objects) for key in keys] if answer is None else answer

    def get_size(self, key: str, /) -> int:
        answer = self._answer("get_size", [key])
        return len(self.objects.get(key, b"")) or NOT_FOUND if answer is None else answer[0]

    def batch_get_session_start(self, keys: Sequence[str], /) -> list[int]:
        answer = self._answer("batch_get_session_start", keys)
        codes = [0 if key in self.objects else NOT_FOUND for key in keys]
        codes = codes if answer is None else answer
        self.reading |= {key for key, code in zip(keys, codes, strict=True) if not code}
        return codes

    def batch_get_into_multi_buffer_ranges(
        self, keys: Sequence[str], pointers: Rows, sizes: Rows, offsets: Rows, /
    ) -> list[int]:
        answer = self._answer("batch_get_into_multi_buffer_ranges", keys)
        if answer is not None:
            return answer
        codes = []
        for key, at, size, offset in zip(keys, pointers, sizes, offsets, strict=True):
            data = self.objects.get(key, b"")
            ends = [o + n for o, n in zip(offset, size, strict=True)]
            if key not in self.reading or max(ends) > len(data):
                codes.append(INVALID)
                continue
            for pointer, n, o in zip(at, size, offset, strict=True):
                self._show(pointer, n)
                ctypes.memmove(pointer, data[o : o + n], n)
            codes.append(sum(size))
        return codes

    def batch_get_session_end(self, keys: Sequence[str], /) -> int:
        self.reading -= set(keys)
        return 0

    def batch_get_into(
        self, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int], /
    ) -> list[int]:
        answer = self._answer("batch_get_into", keys)
        if answer is not None:
            return answer
        codes = []
        for key, pointer, size in zip(keys, pointers, sizes, strict=True):
            data = self.objects.get(key)
            if data is None or len(data) > size:
                codes.append(NOT_FOUND if data is None else INVALID)
                continue
            self._show(pointer, len(data))
            ctypes.memmove(pointer, data, len(data))
            codes.append(len(data))
        return codes

    def batch_put_session_start(self, keys: Sequence[str], sizes: Sequence[int], /) -> list[int]:
        answer = self._answer("batch_put_session_start", keys)
        codes = answer if answer is not None else [
            INVALID if key in self.writing else EXISTS if key in self.objects else 0 for key in keys
        ]  # fmt: skip
        for key, size, code in zip(keys, sizes, codes, strict=True):
            if not code:
                self.writing[key] = bytearray(size)
        return codes

    def batch_put_from_multi_buffer_ranges(
        self, keys: Sequence[str], pointers: Rows, sizes: Rows, offsets: Rows, /
    ) -> list[int]:
        answer = self._answer("batch_put_from_multi_buffer_ranges", keys)
        if answer is not None:
            return answer
        for key, at, size, offset in zip(keys, pointers, sizes, offsets, strict=True):
            for pointer, n, o in zip(at, size, offset, strict=True):
                self._show(pointer, n)
                self.writing[key][o : o + n] = ctypes.string_at(pointer, n)
        return [sum(size) for size in sizes]

    def batch_put_session_end(self, keys: Sequence[str], /) -> list[int]:
        answer = self._answer("batch_put_session_end", keys)
        codes = [0] * len(keys) if answer is None else answer
        for key, code in zip(keys, codes, strict=True):
            if not code:
                self.objects[key] = bytes(self.writing.pop(key))
        return codes

    def batch_put_session_revoke(self, keys: Sequence[str], /) -> list[int]:
        answer = self._answer("batch_put_session_revoke", keys)
        if answer is not None:
            return answer
        return [INVALID if self.writing.pop(key, None) is None else 0 for key in keys]

    def batch_upsert_from(
        self, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int], /
    ) -> list[int]:
        answer = self._answer("batch_upsert_from", keys)
        if answer is not None:
            return answer
        for key, pointer, size in zip(keys, pointers, sizes, strict=True):
            self._show(pointer, size)
            self.objects[key] = ctypes.string_at(pointer, size)
        return [0] * len(keys)

    def batch_remove(self, keys: Sequence[str], force: bool = False, /) -> list[int]:  # noqa: ARG002, FBT001, FBT002
        answer = self._answer("batch_remove", keys)
        if answer is not None:
            return answer
        return [NOT_FOUND if self.objects.pop(key, None) is None else 0 for key in keys]

    def close(self) -> int:
        self.closed += 1
        return 0

    def _answer(self, call: str, keys: Sequence[str]) -> list[int] | None:
        assert not self.closed, f"{call} after close: the library would crash the process"
        self.calls.append((call, tuple(keys)))
        if call in self.before:
            self.before[call]()
        return self.answers[call].popleft() if self.answers[call] else None

    def _show(self, pointer: int, size: int) -> None:
        inside = [a <= pointer and pointer + size <= a + n for a, n in self.registered.items()]
        assert any(inside), "memory that was not registered"
        self.moved.append((pointer, size))


@contextmanager
def fake_store(native: FakeNative, options: str = "wait=0&buffer=1MiB") -> Iterator[MooncakeStore]:
    """Open a store on a fake."""
    store = MooncakeStore(native, settings_of(parse_url(f"mooncake://fake:1?{options}")))
    yield store
    store.close()
