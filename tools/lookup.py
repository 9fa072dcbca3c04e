"""Lookup: from a URL and a target to who looks and what is found there. It prints nothing."""

import re
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from unikv.backends.file import open_url
from unikv.backends.url import mask, parse_url
from unikv.errors import KeyFormatError, StoreError, UrlError
from unikv.hints import Hint
from unikv.keys import ObjectKey
from unikv.registry import open_store
from unikv.store import Store
from unikv.tools.dissect import dissect
from unikv.tools.findings import Fault, Findings, HintFindings
from unikv.tools.one_page import PREFIX_DIGITS, inspect_page
from unikv.tools.reading import folder_exists, object_file, stored_object
from unikv.tools.roster import Known, Roster, is_hint_key, know, read_hint_records
from unikv.tools.survey import Tick, survey

_PAGE = re.compile(rf"[0-9a-f]{{{PREFIX_DIGITS},64}}\Z")


def inspect(
    url: str,
    target: str | None = None,
    *,
    verify: bool = False,
    verbose: bool = False,
    tag_key: bytes | None = None,
    tick: Tick | None = None,
) -> Findings:
    """Return what there is at ``url``, a store or an object's file, or of a ``target`` in it.

    Args:
        url: a store, or the path of the file of one object.
        target: a page hash or its first 8 or more digits, the key of an object or hint record,
            or the path of the file of one object.
        verify: of a whole store: read every object and check all of its tags.
        verbose: of a whole store: tell which pages lack which chunks.
        tag_key: secret of keyed tags.
        tick: of a whole store: progress.

    Raises:
        UrlError: ``url`` is neither store nor file.
        KeyFormatError: ``target`` is none of these, or the digits of several pages.
        StoreError: there is nothing, or the store failed.
        SpecError: the tag key is too short.
    """
    path = _find_file(url, target)
    if path is not None:
        return dissect(object_file(path), path.name, tag_key)
    if target is not None:
        _check_target(target)
    with closing(_open_existing(url)) as store:
        return inspect_store(
            store, mask(url), target, verify=verify, verbose=verbose, tag_key=tag_key, tick=tick
        )


def inspect_store(
    store: Store,
    url: str,
    target: str | None = None,
    *,
    verify: bool = False,
    verbose: bool = False,
    tag_key: bytes | None = None,
    tick: Tick | None = None,
) -> Findings:
    """Do as `inspect` in a store that is open, which ``url`` only names."""
    if target is None:
        return survey(store, url, verify=verify, verbose=verbose, tag_key=tag_key, tick=tick)
    _check_target(target)
    if _PAGE.match(target):
        return inspect_page(store, url, target, tag_key)
    if is_hint_key(target):
        return _inspect_hint(store, url, target, tag_key)

    def find(digest: str) -> Known | None:
        roster = Roster(store, tag_key)
        with suppress(StoreError):  # where a store cannot list, the object tells of itself
            roster.read_hints()
        return roster.find(digest)

    return dissect(stored_object(store, target, url), target, tag_key, find)


def _inspect_hint(store: Store, url: str, key: str, tag_key: bytes | None) -> HintFindings:
    size = stored_object(store, key, url).size
    hint = read_hint_records(store, [key])[0]
    if isinstance(hint, Hint):
        known = know(hint.namespace, tag_key, label=hint.label, announced=True)
        return HintFindings("hint", url, key, size, hint.label, known.facts(), ())
    return HintFindings("hint", url, key, size, "", None, (Fault(key, "hint", hint),))


def _find_file(url: str, target: str | None) -> Path | None:
    """Return the path of an object's file, where one was given in either position."""
    if "://" not in url:
        path = Path(url)
        if path.is_dir():
            raise UrlError(f"{url!r:.300} is a folder: want file://{path.resolve()}")
        if not path.exists():
            raise UrlError(f"{mask(url)!r:.300}: no such file, and no store URL as file:///var/kv")
        if target is not None:
            raise UrlError(f"{url!r:.300} is a file: want a store URL before {target!r:.200}")
        return path
    if target is None or _PAGE.match(target) or is_hint_key(target) or _is_key(target):
        return None
    return Path(target) if "/" in target or Path(target).is_file() else None


def _check_target(target: str) -> None:
    if not (_PAGE.match(target) or is_hint_key(target) or _is_key(target)):
        raise KeyFormatError(
            f"{target!r:.200}: want a page hash (64 hex digits, or its first {PREFIX_DIGITS} or "
            "more), the key of an object or hint record, or the path of an object's file"
        )


def _is_key(text: str) -> bool:
    try:
        ObjectKey.parse(text)
    except KeyFormatError:
        return False
    return True


def _open_existing(url: str) -> Store:
    """Open a store, but make and change none: whoever looks may have mistyped, or only may look."""
    parts = parse_url(url)
    if parts.scheme != "file":
        return open_store(url)
    if parts.path and not folder_exists(parts.path):
        raise StoreError(f"{parts.shown!r:.300}: there is no such folder")
    return open_url(replace(parts, options={**parts.options, "readonly": "1"}))
