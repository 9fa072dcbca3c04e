"""Listing: the objects on all servers, by SCAN. It holds no connection between two steps."""

import re
from collections.abc import Iterator

from xxhash import xxh3_128_intdigest

from unikv.backends.redis_ask import packed
from unikv.backends.redis_errors import reason
from unikv.backends.redis_exchange import Exchange
from unikv.backends.redis_sizes import sizes_of
from unikv.backends.redis_url import Node
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Entry, check_key

_STEP = 1000  # keys that a server looks at in one command


def entries(exchange: Exchange, prefix: str) -> Iterator[Entry]:
    """Stream the objects whose key begins with ``prefix``.

    A scan may meet a key twice while a server's table shrinks or a slot moves, so what was shown
    is remembered: 16 bytes of hash a key.

    Raises:
        StoreError: a server cannot be asked.
    """
    shown: set[int] = set()
    for node in exchange.nodes.masters():
        for names in _scan(exchange, node, prefix):
            new: list[bytes] = []
            for name in names:
                digest = xxh3_128_intdigest(name)
                if digest not in shown:
                    shown.add(digest)
                    new.append(name)
            yield from _entries(exchange, new)


def _entries(exchange: Exchange, names: list[bytes]) -> Iterator[Entry]:
    """Yield an entry for each name that is that of an object, and there."""
    own = len(exchange.nodes.place.prefix)
    keys = {name: name[own:].decode("ascii", "replace") for name in names}
    names = [name for name in names if _is_key(keys[name])]
    for name, size in zip(names, sizes_of(exchange, names, quiet=True), strict=True):
        if isinstance(size, int):
            yield Entry(keys[name], size, None)
        elif isinstance(size, StoreError) or (size is not None and size.code != "WRONGTYPE"):
            raise reason(size, "STRLEN")


def _scan(exchange: Exchange, node: Node, prefix: str) -> Iterator[list[bytes]]:
    """Yield the names that one server holds, some of them more than once."""
    own = exchange.nodes.place.prefix.encode("ascii") + prefix.encode("utf-8", "replace")
    pattern = re.sub(rb"([*?\[\]\\^-])", rb"\\\1", own) + b"*"
    cursor = b"0"
    while True:
        command = packed(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _STEP)
        answer = exchange.nodes.ask(node, command)
        match answer:
            case [bytes() as cursor, [*names]]:
                yield [name for name in names if isinstance(name, bytes) and name.startswith(own)]
            case _:
                raise reason(answer, f"SCAN of {node}")
        if cursor == b"0":
            return


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except KeyFormatError:
        return False
    return True
