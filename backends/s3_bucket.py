"""Bucket: single requests to S3 by obstore, each with its fault told. It knows no batches.

obstore is asked to try once: who retries, and for how long, is decided above a store. It follows
redirects and cannot be told not to, so it is fenced in: what leaves the endpoint's host ends
nowhere.
"""

import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as Client

from unikv.backends.s3_credentials import REGION, Access
from unikv.backends.s3_errors import (
    NOWHERE,
    Fault,
    S3Error,
    explain_answer,
    explain_error,
    explain_lost,
    explain_no_keys,
)
from unikv.backends.s3_fork import GUARD
from unikv.backends.s3_keyring import Keyring, NoKeysError
from unikv.backends.s3_list import OddListing, list_objects
from unikv.backends.s3_sign import Keys, signed_get
from unikv.backends.s3_tls import read_authorities
from unikv.backends.s3_url import S3Place
from unikv.backends.s3_web import ask, find_proxy, make_trust
from unikv.errors import KeyFormatError
from unikv.store import Entry, check_key

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ClientConfig, S3Config, S3Credential

PROBE = ".unikv-if-absent"  # no store key begins with a dot, so it is never listed
DIRECTORY_BUCKET = "--x-s3"  # ends the name of a bucket that lists in no order
IGNORANT = (400, 501)  # what servers answer that do not know the header, and say so

EPOCH = datetime.fromtimestamp(0, UTC)

_T = TypeVar("_T")


class Bucket:
    """A bucket, or what lies beneath a prefix of it.

    Every method raises `S3Error` where the request failed.

    Raises:
        StoreError: the file of authorities holds none, or cannot be read.
    """

    def __init__(self, place: S3Place, access: Access) -> None:
        self.place = place
        self._access = access
        self._authorities = read_authorities(place.ca_certs) if place.ca_certs is not None else None
        self._region = place.region or access.region or REGION
        self._closed = False
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
            found = self._ask(lambda: obstore.head(client, path))
        except S3Error as error:
            if error.fault is Fault.NO_KEY:
                return None
            raise
        if found["last_modified"] == EPOCH:  # obstore's for none
            raise self._strange("Last-Modified")
        self._refuse_weak(found["e_tag"])
        return found["size"]

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
        done = self._ask(lambda: obstore.put(client, path, body, mode=mode, use_multipart=False))
        self._refuse_weak(done["e_tag"])

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
                if error.fault is Fault.EXISTS:
                    return True  # 409: another's is under way, as only those say who heed it
                if error.fault not in (Fault.DENIED, Fault.OTHER) or error.retryable:
                    raise
                return False  # nothing learnt: that name is not for us, or the store is full
        return self._if_absent

    def list(self, prefix: str) -> Iterator[Entry]:
        """Stream the objects whose key begins with ``prefix``."""
        place = self.place
        if prefix and not _is_key(prefix):
            return  # nor does any key begin so
        folder = f"{place.prefix}/" if place.prefix else ""
        # Directory buckets take whole folders only.
        wanted = folder if place.bucket.endswith(DIRECTORY_BUCKET) else folder + prefix
        trust = make_trust(self._authorities) if place.secure else None
        try:
            for entry in list_objects(lambda query: self._page(query, trust), folder, wanted):
                if entry.key.startswith(prefix) and _is_key(entry.key):
                    yield entry
        except OddListing as error:
            raise S3Error(Fault.OTHER, f"{place.server} answers oddly: {error}") from None

    def client(self) -> Client:
        """Return obstore's client, made at its first use: a store may be opened before a fork.

        Credentials are there by then, so that obstore need not wait for them.
        """
        self._enter()
        self._keys()
        client = self._client
        if client is None:
            with self._lock:
                self._enter()
                client = self._client = self._client or self._ask(self._connect)
        return client

    def close(self) -> None:
        """Let go of the connections; requests under way hold on to theirs, and are the last."""
        with self._lock:
            self._closed = True
            self._client = None

    def _enter(self) -> None:
        """Raise `StoreError` if there must be no request any more, or not in this process."""
        if self._closed:
            raise S3Error(Fault.OTHER, f"the store of {self.place.server} was closed meanwhile")
        GUARD.enter()

    def _keys(self) -> Keys | None:
        """Return the credentials, None if nothing is to be signed."""
        if self.place.anonymous or self._access.keyring is None:
            return None
        try:
            return self._access.keyring.keys(self.place.timeout_s)
        except NoKeysError as error:
            raise explain_no_keys(error, self.place) from None

    def _page(self, query: dict[str, str], trust: ssl.SSLContext | None) -> bytes:
        """Return a page of a listing, as the server sent it."""
        self._enter()
        extra = {}
        if os.environ.get("AWS_REQUEST_PAYER", "").lower() in ("requester", "true"):
            extra["x-amz-request-payer"] = "requester"  # as obstore
        url = self.place.bucket_url(self._region)
        request = signed_get(url, query, self._keys(), self._region, extra=extra)
        try:
            answer = ask(request, self.place.timeout_s, trust=trust)
        except ssl.SSLError as error:
            self.size(PROBE)  # obstore fails alike, and what it says is explained
            raise explain_lost(error, self.place) from None
        except OSError as error:
            raise explain_lost(error, self.place) from None
        if answer.status != HTTPStatus.OK:
            raise explain_answer(answer, self.place)
        return answer.body

    def _refuse_weak(self, tag: str | None) -> None:
        """Raise `S3Error` if an answer has an ETag that S3 does not give.

        None is none of these: JuiceFS shows an object a moment before it knows the tag of it. The
        answer to a PUT without one obstore refuses.
        """
        if tag is not None and (tag.startswith("W/") or not tag.strip('"')):
            raise self._strange("ETag")

    def _strange(self, header: str) -> S3Error:
        told = f"an answer without the {header} of S3: is that a proxy's or portal's page?"
        return S3Error(Fault.OTHER, f"{self.place.server} answers oddly: {told}")

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
            if error.fault is Fault.EXISTS and not error.retryable:
                return True
            if error.status not in IGNORANT:
                raise
        return False  # it is made, or the server will have none of the header

    def _connect(self) -> Client:
        place = self.place
        # Raises where no file can be opened: obstore would find no authorities, and say just that.
        os.close(os.open(os.devnull, os.O_RDONLY))
        keyring = None if place.anonymous else self._access.keyring
        config: S3Config = {
            "virtual_hosted_style_request": place.virtual,
            "region": self._region,
            "unsigned_payload": place.unsigned,
            "skip_signature": keyring is None,
            "conditional_put": "etag",
            # The bulk call wants a checksum that servers of MinIO's code do not know.
            "disable_bulk_delete": True,
        }
        if place.bucket_endpoint is not None:
            # This name, because a variable of the environment would win over any other.
            config["aws_endpoint_url_s3"] = place.bucket_endpoint
        options: ClientConfig = {
            "allow_http": not place.secure,  # nor on from https:// to http://
            "timeout": timedelta(seconds=place.timeout_s),
            "connect_timeout": timedelta(seconds=place.connect_s),
            "user_agent": "unikv",
            "allow_invalid_certificates": False,
        }
        if self._authorities is not None:
            options["root_certificate"] = self._authorities  # beside those of the system
        if not self._is_proxied():
            options["proxy_url"] = f"http://{NOWHERE}"
            options["proxy_excludes"] = place.host or f"{self._region}.amazonaws.com"
        return Client(
            place.bucket,
            config=config,
            client_options=options,
            retry_config={"max_retries": 0},
            credential_provider=_provider(keyring, place.timeout_s) if keyring else None,
        )

    def _is_proxied(self) -> bool:
        """Return whether the environment names a proxy for the endpoint."""
        try:
            return find_proxy(urlsplit(self.place.bucket_url(self._region))) is not None
        except OSError:  # one that obstore may know what to do with
            return True

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


def _provider(keyring: Keyring, seconds: float) -> "Callable[[], S3Credential]":
    """Return how obstore gets what a keyring holds. It holds no bucket, which holds it."""

    def give() -> "S3Credential":
        keys = keyring.keys(seconds)
        until = None if keys.expires is None else datetime.fromtimestamp(keys.expires, UTC)
        return {
            "access_key_id": keys.access,
            "secret_access_key": keys.secret,
            "token": keys.token,
            "expires_at": until,
        }

    return give


def _is_key(text: str) -> bool:
    """Return whether a name is one that a store gives; others may lie beneath the prefix, too."""
    try:
        check_key(text)
    except KeyFormatError:
        return False
    return True
