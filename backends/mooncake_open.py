"""Opening: a Mooncake client that is set up, within seconds or not at all. It knows no `Store`."""

import os
import socket

from unikv.backends.batch import explain
from unikv.backends.mooncake_codes import passing, refusal
from unikv.backends.mooncake_native import Native
from unikv.backends.mooncake_url import Place, Settings
from unikv.backends.url import mask
from unikv.errors import MissingExtraError, StoreError

CONNECT_S = 5.0
TIMEOUT_S = 10
"""How long an answer may take where neither the URL nor the environment says."""

STALLS = 10
"""How much shorter an owner's silence may be: one call meets it several times."""

_NEEDED = ("batch_put_session_start", "batch_get_into_multi_buffer_ranges", "batch_upsert_from")


def open_client(settings: Settings) -> Native:
    """Connect to the master.

    Raises:
        MissingExtraError: the package is not installed, or not what it needs of the system.
        StoreError: nobody answers there, or not as a master; or this process may not open one.
    """
    try:
        from unikv.backends.mooncake_library import LOADED_IN, keep, new_client
    except ImportError as error:
        raise _missing(error) from error
    if os.getpid() != LOADED_IN:
        raise StoreError(
            f"process {os.getpid()} was forked from {LOADED_IN}, which had loaded Mooncake: a "
            "client would hang here; start processes by spawn"
        )
    client = new_client()
    lacks = [name for name in _NEEDED if not hasattr(client, name)]
    if lacks:
        raise StoreError(f"the mooncake package has no {', '.join(lacks)}: want 0.3.13 or later")
    here = _reach(settings.master)
    _bound(settings.timeout_s)
    reason = ""
    try:
        code = client.setup(
            settings.host or here,
            settings.metadata,
            settings.segment,
            settings.local,
            settings.protocol,
            settings.device,
            str(settings.master),
        )
        reason = str(refusal(code)) if code else ""
    except (ValueError, RuntimeError) as error:
        reason = str(error)
    if reason:
        raise passing(
            f"Mooncake at {settings.master} accepts connections, but set-up fails: {reason}. Is "
            f"it a master that answers; do metadata={mask(settings.metadata)}, "
            f"protocol={settings.protocol}, device={settings.device!r} and segment="
            f"{settings.segment} fit this machine?"
        )
    keep(client)
    return client


def close_client(native: Native) -> None:
    """Close a client that `open_client` returned, and give back all that it holds."""
    from unikv.backends.mooncake_library import let_go

    native.close()
    let_go(native)


def _reach(master: Place) -> str:
    """Return the address of this machine that the master is reached from.

    The library tries for 90 seconds, and holds the interpreter meanwhile.
    """
    try:
        with socket.create_connection(master, CONNECT_S) as probe:
            return str(probe.getsockname()[0])
    except OSError as error:
        failed = explain(f"no Mooncake master at {master}", error)
        failed.retryable = True
        raise failed from error


def _bound(timeout_s: int | None) -> None:
    """Bound how long the library waits for an answer: of a master, and of an owner of memory.

    It takes these from the environment only, some of them at each transfer: they are of the whole
    process. By default it waits 30 s for a master or the start of an owner's answer, for each range
    anew, and for ever for an owner that stops in the midst of one.
    """
    seconds = timeout_s or TIMEOUT_S
    stall = str(max(1, seconds // STALLS))
    wanted = {
        "MC_RPC_TIMEOUT_MS": str(1000 * seconds),
        "MC_TCP_STATUS_TIMEOUT_SEC": stall,
        "MC_TCP_PROGRESS_TIMEOUT_SEC": stall,
        "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    }
    for name, value in wanted.items():
        if name not in os.environ or (timeout_s and os.environ[name] != value):
            os.environ[name] = value


def _missing(error: ImportError) -> MissingExtraError:
    if (error.name or "").partition(".")[0] == "mooncake":
        text = "which is not installed: pip install 'unikv[mooncake]'"
    else:
        text = f"which cannot be loaded: {error}; it wants libibverbs1, libnuma1 and libcurl4"
    return MissingExtraError(f"mooncake:// needs the package mooncake, {text}", name="unikv")
