"""Removing: deletes objects that nobody holds a lease on any more. It reads and writes none."""

from collections.abc import Sequence

from unikv.backends.batch import Batch
from unikv.backends.mooncake_codes import LEASED, NOT_FOUND, passing, refusal
from unikv.backends.mooncake_native import Native
from unikv.backends.mooncake_pauses import pauses
from unikv.errors import KeyFormatError
from unikv.store import Outcome, check_key


def remove(native: Native, keys: Sequence[str], batch: Batch, wait_s: float) -> None:
    """Remove objects, and note in ``batch`` what became of each.

    One that was read or asked for lately has a lease: whoever holds it may be reading. So it is
    waited for, ``wait_s`` at most; removing it by force would give its memory to other objects.
    """
    left: list[int] = []
    for position, key in enumerate(keys):
        try:
            check_key(key)
            left.append(position)
        except KeyFormatError as error:
            batch.fail(position, f"delete {key!r:.200}", error)
    for _ in pauses(wait_s):
        if not left:
            return
        codes = native.batch_remove([keys[position] for position in left])
        leased = []
        for position, code in zip(left, codes, strict=True):
            if code == NOT_FOUND:
                batch.codes[position] = Outcome.MISS
            elif code == LEASED:
                leased.append(position)
            elif code:
                batch.fail(position, f"delete {keys[position]!r}", refusal(code))
        left = leased
    for position in left:
        cause = passing(f"{refusal(LEASED)}; waited {wait_s:g} s")
        batch.fail(position, f"delete {keys[position]!r}", cause)
