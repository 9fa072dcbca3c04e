"""Signals: what calls wait for, as engines have it: each is set, and waited for in its way."""

import threading
from typing import Any


class Synchronized:
    """An event as CUDA has them: it blocks until it has happened."""

    def __init__(self) -> None:
        self.happened = threading.Event()
        self.asked = threading.Event()

    def set(self) -> None:
        self.happened.set()

    def synchronize(self) -> None:
        self.asked.set()
        assert self.happened.wait(10)


class Queried(Synchronized):
    """An event as torch has them for every device: `wait` is about streams, and takes no time."""

    def query(self) -> bool:
        self.asked.set()
        return self.happened.is_set()

    def synchronize(self) -> None:
        raise AssertionError("this would block")

    def wait(self, stream: object = None) -> None:
        raise AssertionError(f"this makes a stream wait: {stream}")


KINDS: dict[str, Any] = {
    "waits": threading.Event,
    "synchronizes": Synchronized,
    "queries": Queried,
}


def event(kind: str) -> Any:
    return KINDS[kind]()
