"""Tier calls: those of a store whose failure is not the end: it comes as failed items. No tier."""

from collections.abc import Sequence

from unikv.errors import StoreError
from unikv.store import Item, Outcome, Outcomes, Span, Store


def try_put(store: Store, items: Sequence[Item], *, replace: bool) -> Outcomes:
    """Put; all fail where the store refuses the call."""
    try:
        return store.put(items, replace=replace)
    except StoreError as error:
        return _all_failed(len(items), error)


def try_get(store: Store, spans: Sequence[Span]) -> Outcomes:
    """Get, likewise."""
    try:
        return store.get(spans)
    except StoreError as error:
        return _all_failed(len(spans), error)


def try_delete(store: Store, keys: Sequence[str]) -> Outcomes:
    """Delete, likewise."""
    try:
        return store.delete(keys)
    except StoreError as error:
        return _all_failed(len(keys), error)


def try_stat(store: Store, keys: Sequence[str]) -> tuple[Sequence[int | None], StoreError | None]:
    """Return sizes, all unknown where the store refuses the call, and why it did."""
    try:
        return store.stat(keys), None
    except StoreError as error:
        return [None] * len(keys), error


def _all_failed(items: int, error: StoreError) -> Outcomes:
    return Outcomes([Outcome.FAILED] * items, dict.fromkeys(range(items), error))
