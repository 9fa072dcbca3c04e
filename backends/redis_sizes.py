"""Sizes: how large objects are, and whether they are there at all. It knows no connection.

Redis says 0 of a string that is missing and of one that is empty. So zeros are looked for by
EXISTS. What is there then was put since, or is empty: GET tells in one step, and while nobody puts
and deletes the object in between, it has no byte to send.
"""

from collections.abc import Sequence
from typing import TypeAlias, cast

from unikv.backends.redis_ask import Ask, packed
from unikv.backends.redis_errors import Refusal
from unikv.backends.redis_exchange import Exchange
from unikv.errors import StoreError

OBJECT_BYTES = 512 << 20
"""What a string of Redis holds at most. A server closes the connection of who sends more."""
_MAYBE = 1 << 20  # bytes that GET may give, should the object not be empty after all

Size: TypeAlias = int | Refusal | StoreError | None


def sizes_of(exchange: Exchange, keys: Sequence[bytes], *, quiet: bool = False) -> list[Size]:
    """Return the size of each object, None where there is none, or why it cannot be told.

    With ``quiet`` the servers do not count it as use of the objects, if they know how to.
    """

    def ask(command: bytes, places: Sequence[int], data: int = 0) -> list[Size | bytes]:
        asks = [Ask(keys[place], [packed(command, keys[place])], data) for place in places]
        return cast("list[Size | bytes]", exchange.ask(asks, quiet=quiet) if asks else [])

    sizes = cast("list[Size]", ask(b"STRLEN", range(len(keys))))
    zeros = [place for place, size in enumerate(sizes) if size == 0]
    there: list[int] = []
    for place, answer in zip(zeros, ask(b"EXISTS", zeros), strict=True):
        if answer == 1:
            there.append(place)
        else:
            sizes[place] = None if answer == 0 else cast("Size", answer)
    for place, answer in zip(there, ask(b"GET", there, _MAYBE), strict=True):
        sizes[place] = len(answer) if isinstance(answer, bytes) else answer
    return sizes
