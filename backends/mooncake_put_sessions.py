"""PutSessions: objects reserved, written and made readable, in three calls for all. No waiting.

start → write → end, or revoke. Who may start is the only writer: the master says who.
"""

from unikv.backends.mooncake_codes import INVALID, TRANSFER_FAIL, WRITE_FAIL
from unikv.backends.mooncake_native import Native
from unikv.backends.mooncake_pace import Pace
from unikv.backends.mooncake_ranges import Columns


def write_sessions(native: Native, columns: Columns, pace: Pace) -> list[int]:
    """Store objects that are not there; return 0 of each that can be read now, else a code."""
    codes = _start(native, columns)
    rows = [row for row, code in enumerate(codes) if not code]
    if not rows:
        return codes
    some = columns.rows(rows)
    wrote = pace.move(
        some,
        lambda part: native.batch_put_from_multi_buffer_ranges(
            part.keys, part.pointers, part.sizes, part.offsets
        ),
    )
    # The library does not say whose memory it reserved: a frozen owner ends it for all.
    wrote += [TRANSFER_FAIL] * (len(rows) - len(wrote))
    good = [row for row, got, want in zip(rows, wrote, some.wants, strict=True) if got == want]
    if len(good) < len(rows):
        bad = {row: got for row, got in zip(rows, wrote, strict=True) if row not in set(good)}
        for row, got in bad.items():
            codes[row] = got if got < 0 else WRITE_FAIL
        native.batch_put_session_revoke([columns.keys[row] for row in bad])
    if good:
        ended = native.batch_put_session_end([columns.keys[row] for row in good])
        for row, code in zip(good, ended, strict=True):
            codes[row] = code
    return codes


def _start(native: Native, columns: Columns) -> list[int]:
    """Reserve objects; return a code for each, 0 for those that are ours to write now.

    A session that could not be ended, as when the master went away, bars its key to this client:
    it is given up first. If the key is another's by now, the library keeps barring it: INVALID.
    """
    codes = native.batch_put_session_start(columns.keys, columns.wants)
    barred = [row for row, code in enumerate(codes) if code == INVALID]
    if barred:
        some = columns.rows(barred)
        native.batch_put_session_revoke(some.keys)
        again = native.batch_put_session_start(some.keys, some.wants)
        for row, code in zip(barred, again, strict=True):
            codes[row] = code
    return codes
