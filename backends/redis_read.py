"""Reader: ranges of objects into the caller's memory, by GETRANGE. It knows no connection.

GETRANGE answers a missing object, an empty one and a range behind the end all alike: with fewer
bytes than were asked for. Where that happens the size is asked for; the usual case pays nothing.
"""

from collections.abc import Sequence

from unikv.backends.batch import Batch, short_object, span_bytes
from unikv.backends.redis_ask import Ask
from unikv.backends.redis_errors import failure, reason
from unikv.backends.redis_exchange import Exchange
from unikv.backends.redis_sizes import OBJECT_BYTES, sizes_of
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Outcome, Span, check_key

_GETRANGE = b"*4\r\n$8\r\nGETRANGE\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
_TRIES = 3  # of a range whose object is replaced meanwhile


class Reader:
    """Reads the spans of one call."""

    __slots__ = ("_batch", "_exchange", "_partial", "_spans")

    def __init__(self, exchange: Exchange, spans: Sequence[Span], batch: Batch) -> None:
        self._exchange = exchange
        self._spans = spans
        self._batch = batch
        self._partial: set[int] = set()  # spans that had some bytes, but not all

    def read(self) -> None:
        """Fill the views of each span and note what became of it."""
        ranged: list[int] = []
        settled: list[int] = []  # no byte of any object: its size tells all
        for position, span in enumerate(self._spans):
            try:
                check_key(span.key)
                empty = span_bytes(span) == 0
            except (KeyFormatError, StoreError) as error:
                self._fail(position, error)
                continue
            # An end of -1, as an empty range has, would be the end of the object.
            (settled if empty or span.stop > OBJECT_BYTES else ranged).append(position)
        for _ in range(_TRIES):
            ranged = self._settle(settled + self._read_ranges(ranged))
            settled = []
        for position in ranged:
            if position in self._partial:
                changing = failure("the object is replaced again and again", retryable=True)
                self._fail(position, changing)
            else:  # it comes and goes, and was not there when its bytes were asked for
                self._batch.codes[position] = Outcome.MISS

    def _read_ranges(self, positions: Sequence[int]) -> list[int]:
        """Read ranges; return those that had fewer bytes than were asked for."""
        if not positions:
            return []
        short: list[int] = []
        replies = self._exchange.ask([self._ask(self._spans[position]) for position in positions])
        for position, reply in zip(positions, replies, strict=True):
            span = self._spans[position]
            if not isinstance(reply, int):
                self._fail(position, reason(reply, "GETRANGE"))
            elif reply != span.stop - span.start:
                short.append(position)
                if reply:
                    self._partial.add(position)
        return short

    def _settle(self, positions: Sequence[int]) -> list[int]:
        """Note what became of spans by the size of their objects; return those to read again."""
        if not positions:
            return []
        again: list[int] = []
        names = [self._exchange.name(self._spans[position].key) for position in positions]
        for position, size in zip(positions, sizes_of(self._exchange, names), strict=True):
            _, start, stop, _ = self._spans[position]
            if size is None:
                self._batch.codes[position] = Outcome.MISS
            elif not isinstance(size, int):
                self._fail(position, reason(size, "STRLEN"))
            elif size < stop:
                self._fail(position, short_object(size, start, stop))
            elif start < stop:  # it was put, or replaced, since
                again.append(position)
        return again

    def _ask(self, span: Span) -> Ask:
        name = self._exchange.name(span.key)
        size = span.stop - span.start
        first, last = b"%d" % span.start, b"%d" % (span.stop - 1)
        command = _GETRANGE % (len(name), name, len(first), first, len(last), last)
        return Ask(name, [command], size, span.into)

    def _fail(self, position: int, error: Exception) -> None:
        self._batch.fail(position, f"get {self._spans[position].key!r:.200}", error)
