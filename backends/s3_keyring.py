"""Keyring: the credentials of one source, asked for again before they run out. It makes no request.

obstore would ask for them again with every request that finds none, one request after the other.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread

from unikv.backends.s3_sign import Keys
from unikv.errors import StoreError

EARLY_S = 600.0
"""Seconds before their end that keys are asked for again; obstore asks 300 before."""

LAST_S = 60.0
"""Seconds before their end that keys are no longer used, though no others were to be had."""


class NoKeysError(StoreError):
    """A source that gave no credentials, and how that was. It quotes nothing that came from there.

    ``silent`` says that it did not answer in time.
    """

    def __init__(self, message: str, *, retryable: bool = False, silent: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.silent = silent

    def again(self) -> "NoKeysError":
        """Return an equal one, which holds nobody's frames."""
        return NoKeysError(str(self), retryable=self.retryable, silent=self.silent)


class Keyring:
    """Holds what a source gave.

    Those who wait while it is asked get what it said then, a failure too: a source that keeps
    silent costs them one wait together, not one each.

    Args:
        fetch: asks the source, for so many seconds at most; it raises `NoKeysError`.
    """

    def __init__(self, fetch: Callable[[float], Keys]) -> None:
        self._fetch = fetch
        self._lock = Lock()
        self._keys: Keys | None = None
        self._fresh_until = 0.0
        self._failed: tuple[float, NoKeysError] | None = None

    def __repr__(self) -> str:
        return "Keyring(...)"

    def keys(self, seconds: float) -> Keys:
        """Return credentials that hold for the next minutes.

        Raises:
            NoKeysError: there are none to be had.
        """
        keys = self._keys
        if keys is not None and time.time() < self._fresh_until:
            return keys
        came = time.monotonic()
        with self._lock:
            if self._keys is not None and time.time() < self._fresh_until:
                return self._keys
            if self._failed is not None and self._failed[0] > came:
                raise self._failed[1].again()
            try:
                self._keys = _require_sound(self._fetch(seconds))
            except NoKeysError as error:
                held = self._keys
                if held is None or held.expires is None or held.expires - LAST_S < time.time():
                    self._failed = (time.monotonic(), error.again())
                    raise
                self._fresh_until = time.time() + LAST_S / 2  # then it is asked again
                return held
            self._fresh_until = _fresh_until(self._keys.expires)
            return self._keys


def _require_sound(keys: Keys) -> Keys:
    if not keys.sound:
        raise NoKeysError("those that are given hold a space or a line break")
    return keys


class Aside:
    """A call that may never return, such as one of a program, made where that holds nothing up.

    While one is under way no other is begun: who asks again waits for that one.
    """

    def __init__(self, call: Callable[[], Keys]) -> None:
        self._call = call
        self._running: Future[Keys] | None = None

    def result(self, seconds: float) -> Keys:
        """Return what the call returns, or raise what it raises; `TimeoutError` if it takes longer.

        Not for several threads at once: a keyring asks one after the other.
        """
        running = self._running
        if running is None:
            running = Future()
            Thread(target=self._run, args=(running,), name="unikv-s3-keys", daemon=True).start()
            self._running = running
        try:
            return running.result(seconds)
        finally:
            if running.done():
                self._running = None

    def _run(self, running: "Future[Keys]") -> None:
        try:
            running.set_result(self._call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            running.set_exception(error)


def _fresh_until(expires: float | None) -> float:
    """Return until when keys need not be asked for again."""
    if expires is None:
        return float("inf")
    return expires - min(EARLY_S, (expires - time.time()) / 2)
