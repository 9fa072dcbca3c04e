"""Bucket: single requests to S3 by obstore, each with its fault told. It knows no batches.

obstore is asked to try once: who retries, and for how long, is decided above a store.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as Client

from unikv.backends.s3_credentials import Access
from unikv.backends.s3_errors import Fault, S3Error, explain_error
from unikv.backends.s3_fork import GUARD
from unikv.backends.s3_url import S3Place
from unikv.errors import KeyFormatError
from unikv.store import Entry, check_key

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ClientConfig, S3Config

CONNECT_S = 5.0
PAGE = 1000  # entries of a listing that are asked for at once
PROBE = ".unikv-if-absent"  # no store key begins with a dot, so it is never listed
DIRECTORY_BUCKET = "--x-s3"  # ends the name of a bucket that lists in no order
REGION = "us-east-1"
IGNORANT = (400, 501)  # what servers answer that do not know the header, and say so

_T = TypeVar("_T")


class Bucket:
    """A bucket, or what lies beneath a prefix of it.

    Every method raises `S3Error` where the request failed.
    """

    def __init__(self, place: S3Place, access: Access) -> None:
        self.place = place
        self._access = access
        self._lock = Lock()
        self._client: Client | None = None
        self._if_absent: bool | None = None  # not yet known
        self._seen = False  # whether an answer showed that there is a bucket

    def ranges(self, key: str, starts: Sequence[int], stops: Sequence[int]) -> list[memoryview]:
        """Return bytes of ranges that neither touch nor overlap: fewer where the object ends.

        Others could be joined by obstore, which panics where one of them has no bytes then.
        """
        client, path = self.client(), self.place.path(key)
        if len(starts) == 1:
            start, stop = starts[0], stops[0]
            data = self._ask(lambda: obstore.get_range(client, path, start=start, end=stop))
            return [memoryview(data)]
        return [
            memoryview(data)
            for data in self._ask(
                lambda: obstore.get_ranges(client, path, starts=starts, ends=stops, coalesce=0)
            )
        ]

    def size(self, key: str) -> int | None:
        """Return an object's size, None if there is none, or no bucket."""
        client, path = self.client(), self.place.path(key)
        try:
            return self._ask(lambda: obstore.head(client, path)["size"])
        except S3Error as error:
            if error.fault is Fault.NO_KEY:
                return None
            raise

    def require(self, key: str) -> None:
        """Raise `S3Error` if there is no bucket; ``key`` is one that HEAD did not find in it.

        Asks only until it was seen. Other faults say nothing of the bucket, and raise nothing.
        """
        if self._seen:
            return
        try:
            self._look_for_bucket(key)
        except S3Error as error:
            if error.fault is Fault.NO_BUCKET:
                raise

    def sure_size(self, key: str) -> int | None:
        """Return an object's size, None if there is none; a missing bucket is a fault."""
        size = self.size(key)
        if size is None:
            self._look_for_bucket(key)
        return size

    def put(self, key: str, views: Sequence[memoryview], *, create: bool = False) -> None:
        """Store an object in one request, without copying its bytes.

        With ``create`` one that is there is a fault, `Fault.EXISTS`, where the server knows how.
        """
        client, path = self.client(), self.place.path(key)
        mode: PutMode = "create" if create else "overwrite"
        body = list(views) or b""
        self._ask(lambda: obstore.put(client, path, body, mode=mode, use_multipart=False))

    def delete(self, key: str) -> None:
        """Remove an object if there is one."""
        client, path = self.client(), self.place.path(key)
        self._ask(lambda: obstore.delete(client, path))

    def knows_if_absent(self) -> bool:
        """Return whether the server heeds ``If-None-Match: *``, found out by the first caller.

        Some ignore it silently, so an empty object is put twice; it stays for the next store.
        """
        if self._if_absent is None:
            try:
                self._if_absent = self._probe() or self._probe()
            except S3Error as error:
                if error.fault not in (Fault.DENIED, Fault.OTHER) or error.retryable:
                    raise
                return False  # nothing learnt: that name is not for us, or the store is full
        return self._if_absent

    def list(self, prefix: str) -> Iterator[Entry]:
        """Stream the objects whose key begins with ``prefix``."""
        client, place = self.client(), self.place
        if prefix and not _is_key(prefix):
            return  # nor does any key begin so
        folder = f"{place.prefix}/" if place.prefix else ""
        # obstore narrows by whole parts of a path only. Listings come in order, so that it is
        # enough to begin behind the last name before the prefix, and to end behind the prefix.
        ordered = not place.bucket.endswith(DIRECTORY_BUCKET)
        offset = folder + _before(prefix) if prefix and ordered else None
        pages = obstore.list(client, place.prefix or None, offset=offset, chunk_size=PAGE)
        while (page := self._ask(lambda: next(pages, None))) is not None:
            for found in page:
                key = found["path"][len(folder) :]
                if not key.startswith(prefix):
                    if ordered and key > prefix:
                        return
                elif _is_key(key):
                    yield Entry(key, found["size"], found["last_modified"].timestamp())

    def client(self) -> Client:
        """Return obstore's client, made at its first use: a store may be opened before a fork."""
        GUARD.enter()
        client = self._client
        if client is None:
            with self._lock:
                client = self._client = self._client or self._ask(self._connect)
        return client

    def close(self) -> None:
        """Let go of the connections; requests under way hold on to theirs."""
        self._client = None

    def _look_for_bucket(self, key: str) -> None:
        """Raise `S3Error` unless there is a bucket, whether or not it has ``key``.

        An answer to HEAD has no body that could name what is missing; one to GET has.
        """
        try:
            self.ranges(key, [0], [1])
        except S3Error as error:
            if error.fault not in (Fault.NO_KEY, Fault.RANGE):
                raise
        self._seen = True

    def _probe(self) -> bool:
        """Make the probe object; return whether the server said that it was there."""
        try:
            self.put(PROBE, [], create=True)
        except S3Error as error:
            if error.fault is Fault.EXISTS:
                return not error.retryable
            if error.status not in IGNORANT:
                raise
        return False  # it is made, or the server will have none of the header

    def _connect(self) -> Client:
        place = self.place
        config: S3Config = {
            "virtual_hosted_style_request": place.virtual,
            "region": place.region or self._access.region or REGION,
            "unsigned_payload": place.unsigned,
            "skip_signature": place.anonymous,
            "conditional_put": "etag",
            # The bulk call wants a checksum that servers of MinIO's code do not know.
            "disable_bulk_delete": True,
        }
        if place.bucket_endpoint is not None:
            # This name, because a variable of the environment would win over any other.
            config["aws_endpoint_url_s3"] = place.bucket_endpoint
        options: ClientConfig = {
            "allow_http": place.allow_http,
            "timeout": timedelta(seconds=place.timeout_s),
            "connect_timeout": timedelta(seconds=min(CONNECT_S, place.timeout_s)),
            "user_agent": "unikv",
        }
        return Client(
            place.bucket,
            config=config,
            client_options=options,
            retry_config={"max_retries": 0},
            credential_provider=None if place.anonymous else self._access.provider,
        )

    def _ask(self, request: Callable[[], _T]) -> _T:
        """Make a request of obstore: the one place where its errors become ours."""
        try:
            return request()
        except (BaseError, OSError, ValueError, TypeError) as error:
            fault = explain_error(error, self.place)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust, and no Exception
                raise
            fault = S3Error(Fault.OTHER, "obstore panicked; its own message is on stderr")
        if fault.fault is Fault.NO_BUCKET:
            self._seen = False  # any more
        # Raised here, outside: an obstore error quotes what the server sent, and would be shown
        # as the context of ours.
        try:
            raise fault
        finally:
            del fault  # else it and this frame hold each other, and the caller's buffers


def _before(prefix: str) -> str:
    """Return a text that sorts behind all store keys before ``prefix``, and before the rest."""
    last = prefix[-1]
    # Between . and 0 lies the slash, which would be a folder.
    return f"{prefix[:-1]}{'.' if last == '0' else chr(ord(last) - 1)}~"


def _is_key(text: str) -> bool:
    """Return whether a name is one that a store gives; others may lie beneath the prefix, too."""
    try:
        check_key(text)
    except KeyFormatError:
        return False
    return True
