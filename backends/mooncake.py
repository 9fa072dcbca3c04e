"""MooncakeStore: objects in the memory of a Mooncake cluster. It knows no KV."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from urllib.parse import quote, urlencode

from unikv.backends.batch import Batch, explain
from unikv.backends.mooncake_admin import KEYS_A_QUESTION, Admin
from unikv.backends.mooncake_disk import DiskReader
from unikv.backends.mooncake_gate import Gate
from unikv.backends.mooncake_memory import Memory
from unikv.backends.mooncake_native import Native
from unikv.backends.mooncake_open import TIMEOUT_S, close_client, open_client
from unikv.backends.mooncake_pace import Pace
from unikv.backends.mooncake_read import Reader
from unikv.backends.mooncake_remove import remove
from unikv.backends.mooncake_sessions import Sessions
from unikv.backends.mooncake_sizes import Sizes
from unikv.backends.mooncake_url import Settings, settings_of
from unikv.backends.mooncake_write import Writer
from unikv.backends.url import StoreUrl
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Entry, Item, Opener, Outcomes, Span, check_key


class MooncakeStore:
    """A `unikv.store.Store` on Mooncake. `open_url` opens it; the class takes a client as it is.

    Args:
        native: a client that is set up; the store closes it.
        settings: what it was set up with.
        url: what opens an equal store; never shown.
        close: closes the client, where that takes more than its own call.
    """

    def __init__(
        self,
        native: Native,
        settings: Settings,
        url: str = "",
        close: Callable[[], object] | None = None,
    ) -> None:
        self._native = native
        self._settings = settings
        self._url = url
        self._close = close or native.close
        admin = settings.admin
        self._admin = Admin(*admin, settings.timeout_s or TIMEOUT_S) if admin else None
        self._memory = Memory(native, settings.buffer)
        pace = Pace()
        sessions = Sessions(native, pace)
        self._sizes = Sizes(native, self._memory, self._admin)
        disk = DiskReader(native, self._memory)
        self._reader = Reader(self._memory, sessions, self._sizes, disk)
        self._writer = Writer(native, self._memory, self._sizes, pace, settings.wait_s)
        self._gate = Gate(f"Mooncake store {settings.master}", self._finish)

    def __repr__(self) -> str:
        settings = self._settings
        return f"MooncakeStore({str(settings.master)!r}, protocol={settings.protocol!r})"

    @property
    def opener(self) -> Opener:
        """How another process opens an equal store, started by spawn."""
        return Opener("unikv.registry", "open_store", [self._url])

    def register(self, buffer: memoryview) -> None:
        """Make memory known to the transport: what lies in it is moved without a copy.

        It is forgotten when the object is gone that ``buffer`` is of. One that cannot tell, as a
        `bytearray`, is kept until the store is closed.

        Raises:
            StoreError: it is read-only or scattered, overlaps other registered memory, or the
                transport refuses it.
        """
        with self._gate:
            self._memory.add(buffer)

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store each object; see `unikv.store.Store.put`.

        Waits a little for room, and for another that writes the same key: see ``wait=``.
        """
        batch = Batch(len(items))
        with self._gate:
            self._writer.put(items, batch, replace=replace)
        return batch.outcomes()

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Fill each span's views; see `unikv.store.Store.get`. Reading takes leases."""
        batch = Batch(len(spans))
        with self._gate:
            self._reader.read(spans, batch)
        return batch.outcomes()

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return each object's size; see `unikv.store.Store.stat`.

        Takes a lease on what exists, unless the store knows the master's HTTP server: ``admin=``.

        Raises:
            StoreError: the master does not answer.
        """
        with self._gate:
            try:
                found = self._sizes.ask([key for key in dict.fromkeys(keys) if _is_key(key)])
            except StoreError as error:
                raise explain(f"stat of {len(keys)} keys", error) from error
        return [found.get(key) for key in keys]

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove each object; see `unikv.store.Store.delete`.

        Waits a little for leases to end, which readers hold: see ``wait=``.
        """
        batch = Batch(len(keys))
        with self._gate:
            remove(self._native, keys, batch, self._settings.wait_s)
        return batch.outcomes()

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Stream the objects, whoever stored them; see `unikv.store.Store.list`.

        Raises:
            StoreError: the store does not know the master's HTTP server.
        """
        self._gate.require_open()
        if self._admin is None:
            raise StoreError(
                "Mooncake's client cannot list: say where the master's HTTP server is "
                "(its --metrics_port), as in ?admin=10.0.0.1:9003"
            )
        return self._entries(self._admin, prefix)

    def close(self) -> None:
        """Release the client; memory that it lent takes its objects along. See `Store.close`."""
        self._gate.close()

    def _entries(self, admin: Admin, prefix: str) -> Iterator[Entry]:
        keys = (key for key in admin.names() if key.startswith(prefix) and _is_key(key))
        while some := list(islice(keys, KEYS_A_QUESTION)):
            with self._gate:
                sizes = self._sizes.ask(some)
            yield from (Entry(key, size, None) for key, size in sizes.items())

    def _finish(self) -> None:
        """Close the client, once no call is in it."""
        self._close()
        self._memory.forget()
        if self._admin:
            self._admin.close()


def open_url(url: StoreUrl) -> MooncakeStore:
    """Open ``mooncake://host:port`` of a master.

    ===============  ============================================================================
    ``metadata=``    Mooncake's metadata server; clients ask each other by default
    ``protocol=``    ``tcp`` or ``rdma``, and ``device=`` which RDMA devices, by comma
    ``host=``        this machine, as others reach it; by default as it reaches the master
    ``segment=``     memory that this process lends to the store, as ``4GiB``; none by default
    ``buffer=``      registered memory for what lies in none, 64 MiB by default
    ``local=``       the library's own, to read objects from a shared file system; 16 MiB
    ``admin=``       ``host:port`` of the master's HTTP server: listing, and sizes without leases
    ``timeout=``     seconds that an answer may take, 10 by default; of the whole process
    ``wait=``        seconds that a call waits for room, leases and other writers, 2 by default
    ===============  ============================================================================
    """
    settings = settings_of(url)
    text = f"mooncake://{url.authority}?{urlencode(url.options, quote_via=quote)}"
    native = open_client(settings)
    try:
        return MooncakeStore(native, settings, text, partial(close_client, native))
    except BaseException:
        close_client(native)
        raise


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except KeyFormatError:
        return False
    return True
