"""Tiered URLs: ``tiered://?fast=URL&slow=URL``, and how another process opens such a store."""

import math
from collections.abc import Sequence
from importlib import import_module
from typing import cast

from unikv.backends.tiered import MODES, Mode, TieredStore
from unikv.backends.url import StoreUrl
from unikv.errors import UrlError
from unikv.store import Store

_OPTIONS = ("fast", "slow", "mode", "promote_bytes", "queue_objects", "wait")


def open_url(url: StoreUrl) -> TieredStore:
    """Open ``tiered://?fast=URL&slow=URL``, as docs/tiered.md says."""
    url.refuse_host()
    url.refuse_path()
    try:
        url.refuse_options_except(*_OPTIONS)
    except UrlError as error:  # as likely as not an option of a tier
        raise UrlError(f"{error}; write & of an inner URL as %26") from None
    tiers = {name: url.options.get(name) for name in ("fast", "slow")}
    for name, text in tiers.items():
        if text is None:
            raise UrlError(
                f"store URL {url.shown!r:.200} has no {name} tier: want "
                "tiered://?fast=URL&slow=URL, with & in them as %26, ? as %3F and @ as %40"
            )
    mode = url.options.get("mode", MODES[0])
    if mode not in MODES:
        raise UrlError(f"store URL {url.shown!r:.200}: option mode: want {' or '.join(MODES)}")
    settings = (
        mode,
        int(_number(url, "promote_bytes", 64 << 20)),
        int(_number(url, "queue_objects", 10_000)),
        _number(url, "wait", 30.0),
    )
    # By name, as another process opens a store: backends lie below the registry.
    first, second = (["unikv.registry", "open_store", [text]] for text in tiers.values())
    return open_tiers(first, second, settings)


def open_tiers(
    fast: Sequence[object], slow: Sequence[object], settings: Sequence[object]
) -> TieredStore:
    """Open a tiered store from the openers of its tiers; what `TieredStore.opener` calls."""
    first = _open(fast)
    try:
        second = _open(slow)
    except BaseException:
        first.close()
        raise
    mode, promote_bytes, queue_objects, wait_s = settings
    return TieredStore(
        first,
        second,
        mode=cast("Mode", mode),
        promote_bytes=cast("int", promote_bytes),
        queue_objects=cast("int", queue_objects),
        wait_s=cast("float", wait_s),
    )


def _open(opener: Sequence[object]) -> Store:
    module, function, arguments = opener
    opened: Store = getattr(import_module(str(module)), str(function))(
        *cast("Sequence[object]", arguments)
    )
    return opened


def _number(url: StoreUrl, name: str, default: float) -> float:
    text = url.options.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UrlError(f"store URL {url.shown!r:.200}: option {name}: want a number from 0")
    return number
