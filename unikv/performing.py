"""Performing: carries out orders on a store and the arena's bytes. It touches no pool.

read: see `fetching`. write: header → store.put; with a codec: pack → header → store.put; object by
object where the store takes them so, while a processor's cache has what was hashed. It runs in an
I/O thread or in the I/O process; whoever ordered keeps the bytes until it is done, however late.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TypeAlias

from unikv.errors import StoreError
from unikv.fetching import read
from unikv.orders import (
    Answer,
    Order,
    Peek,
    PeekDone,
    Post,
    PostDone,
    Read,
    Stat,
    StatDone,
    Unwritten,
    Write,
    WriteDone,
    refuse,
)
from unikv.persisting import again, outage_of, persist, sized
from unikv.store import Item, Outcome, Outcomes, Span, Store, find_in_turn

Perform: TypeAlias = Callable[[Order, float], Answer]


def perform(store: Store, memory: memoryview, order: Order, until: float) -> Answer:
    """Carry out an order, trying again until ``until`` (`time.monotonic`) what may pass.

    Whatever the store raises becomes the answer's error.
    """
    try:
        match order:
            case Read():
                return read(store, memory, order, until)
            case Write():
                return _write(store, memory, order, until)
            case Stat(keys, wanted):
                sizes = sized(store.stat(keys), keys)
                if wanted and (refresh := getattr(store, "refresh", None)):
                    refresh([k for k, size in zip(keys, sizes, strict=True) if size is not None])
                return StatDone(sizes)
            case Peek():
                return _peek(store, order, until)
            case Post():
                return _post(store, order, until)
    except BaseException as error:  # noqa: BLE001 - the edge of a backend: a Rust panic, anything
        text = _told(error)
        outage = not isinstance(error, StoreError) or error.retryable
        return refuse(order, text, outage=outage)


def _write(store: Store, memory: memoryview, order: Write, until: float) -> WriteDone:
    begun = perf_counter()
    encode_s = 0.0
    again_keys = frozenset(order.again)
    stored = existed = written = retries = 0
    outages: list[bool] = []
    failed: list[Unwritten] = []
    tails = order.passage.write.key_tails
    every = [(n, c) for n, row in enumerate(order.pages) for c in row.chunks]
    for replace in (False, True):
        some = [
            (n, c) for n, c in every if (order.pages[n].page + tails[c] in again_keys) == replace
        ]
        if not some:
            continue
        items = _Encoding(order, some, memory)
        outcomes, more = _put(store, items, until, replace=replace)
        encode_s += items.seconds
        retries += more
        outages.append(outage_of(outcomes))
        failed += items.unmade()
        for i, ((n, _), item, code) in enumerate(
            zip(some, items.made, outcomes.codes, strict=False)
        ):
            if code == Outcome.FAILED:
                why = outcomes.errors.get(i) or "not stored"
                failed.append(Unwritten(n, item.key, f"{why!s:.400}"))
            elif code == Outcome.EXISTED:
                existed += 1
            else:
                stored += 1
                written += sum(map(len, item.buffers))  # all are bytes: `Item.size` asks each
    lost = {key for _, key, _ in failed}
    return WriteDone(
        stored,
        existed,
        written,
        failed,
        [key for key in order.again if key not in lost],
        {"encode": encode_s, "put": perf_counter() - begun - encode_s},
        outage=bool(outages) and all(outages),
        retries=retries,
    )


def _put(store: Store, items: "_Encoding", until: float, *, replace: bool) -> tuple[Outcomes, int]:
    """Encode and put objects, one after the other where the store takes them so."""
    in_turn = find_in_turn(store, "put")
    if in_turn is None:
        return persist(partial(store.put, replace=replace), list(items), until)
    outcomes = in_turn(items, replace=replace)
    return again(partial(store.put, replace=replace), items.made, outcomes, until)


class _Encoding:
    """The objects of some chunks of an order's pages, encoded as they are asked for, once.

    Where one cannot be encoded it ends: those before may be stored already.
    """

    def __init__(self, order: Write, chunks: Sequence[tuple[int, int]], memory: memoryview) -> None:
        self._order = order
        self._chunks = chunks
        self._memory = memory
        self.made: list[Item] = []
        self.seconds = 0.0
        """How long it took up to now."""
        self._why = ""

    def __iter__(self) -> Iterator[Item]:
        for n, c in self._chunks:
            begun = perf_counter()
            try:
                item = _encode(self._order, n, c, self._memory)
            except Exception as error:  # noqa: BLE001 - what is stored must be reported all the same
                self._why = _told(error)
                return
            self.seconds += perf_counter() - begun
            self.made.append(item)
            yield item

    def unmade(self) -> Iterator[Unwritten]:
        """Yield what was not encoded, and why."""
        tails = self._order.passage.write.key_tails
        for n, c in self._chunks[len(self.made) :]:
            why = self._why or "the store did not take it"
            yield Unwritten(n, self._order.pages[n].page + tails[c], why)


def _encode(order: Write, n: int, c: int, memory: memoryview) -> Item:
    """Return the object of a chunk of a page."""
    plan, form = order.passage.write, order.passage.format
    page, parent, number, _ = order.pages[n]
    chunk = plan.chunks[c]
    place = order.at + n * plan.page_bytes + plan.place[c] + form.header_bytes
    payload = memory[place : place + chunk.payload_bytes]
    buffers = form.compose(page, chunk, payload, parent=parent, page_index=number)
    return Item(page + plan.key_tails[c], buffers)


def _peek(store: Store, order: Peek, until: float) -> PeekDone:
    buffers = [bytearray(stop - start) for _, start, stop in order.spans]
    spans = [
        Span(key, start, stop, [memoryview(buffer)])
        for (key, start, stop), buffer in zip(order.spans, buffers, strict=True)
    ]
    outcomes, retries = persist(store.get, spans, until)
    data = [
        bytes(buffer) if code == Outcome.OK else b""
        for code, buffer in zip(outcomes.codes, buffers, strict=True)
    ]
    errors = {n: f"{error!s:.400}" for n, error in outcomes.errors.items()}
    codes = list(map(int, outcomes.codes))
    return PeekDone(codes, data, errors, outage=outage_of(outcomes), retries=retries)


def _post(store: Store, order: Post, until: float) -> PostDone:
    put = partial(store.put, replace=order.replace)
    outcomes, retries = persist(put, order.items, until)
    errors = {n: f"{error!s:.400}" for n, error in outcomes.errors.items()}
    codes = list(map(int, outcomes.codes))
    return PostDone(codes, errors, outage=outage_of(outcomes), retries=retries)


def _told(error: BaseException) -> str:
    """Return an error as text; one that cannot even be told, by its type."""
    try:
        return f"{type(error).__name__}: {error!s:.400}"
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return type(error).__name__
