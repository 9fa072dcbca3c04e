"""Oracle: coverage by DESIGN's words alone, token by token and page by page. No unikv in it."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias


class Rule(NamedTuple):
    kind: Literal["every", "window", "state"]
    tokens: int = 0
    retained: int = 0


Held: TypeAlias = tuple[Rule, Iterable[int]]  # a component's rule and the pages it holds


def needed(rule: Rule, endpoint: int, page_tokens: int) -> set[int]:
    """Return the pages that hold a token, or the state, which ``endpoint`` stands on."""
    end = endpoint * page_tokens
    if rule.kind == "state":
        return {(end - 1) // page_tokens} if end else set()
    first = 0
    if rule.kind == "window":
        first = end - (rule.tokens - 1 + rule.retained)
    return {token // page_tokens for token in range(end) if token >= first}


def restorable(rule: Rule, held: Iterable[int], pages: int, page_tokens: int) -> set[int]:
    """Return the endpoints whose pages are held, each page asked for by itself."""
    have = set(held)
    found = set()
    for endpoint in range(pages + 1):
        if all(page in have for page in needed(rule, endpoint, page_tokens)):
            found.add(endpoint)
    return found


def best(components: Mapping[str, Held], pages: int, page_tokens: int) -> int:
    """Return the greatest endpoint at which no component lacks a page."""
    for endpoint in range(pages, 0, -1):
        if all(
            needed(rule, endpoint, page_tokens) <= set(held) for rule, held in components.values()
        ):
            return endpoint
    return 0
