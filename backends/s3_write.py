"""Writing to S3: puts one object, if-absent or not. It reads nothing but sizes."""

from collections.abc import Sequence
from threading import Lock

from unikv.backends.batch import item_bytes
from unikv.backends.s3_bucket import Bucket
from unikv.backends.s3_errors import Fault, S3Error
from unikv.errors import StoreError
from unikv.store import Item, Outcome, check_key

MOST = 5 << 30
"""Bytes that S3 takes in one request."""

LOCKS = 256


class Writer:
    """Puts objects if-absent, whether or not the server knows what that is.

    Where it does not, this store still stores a key once; another one may store the same object at
    the same time, which does no harm to either.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._locks = [Lock() for _ in range(LOCKS)]

    def put(self, item: Item, *, replace: bool, create: bool) -> Outcome:
        """Store one object; see `unikv.store.Store.put`.

        Args:
            item: the object.
            replace: whether one that is there goes.
            create: whether the server heeds ``If-None-Match``.

        Raises:
            StoreError: it could not be stored.
            KeyFormatError: no store can hold the key.
        """
        key, buffers = item
        check_key(key)
        size = item_bytes(buffers)
        if size > MOST:
            raise StoreError(f"an object of {size} bytes: S3 takes at most {MOST} in one request")
        views = [memoryview(b).cast("B") for b in buffers if memoryview(b).nbytes]
        if replace:
            self._bucket.put(key, views)
            return Outcome.OK
        if create:
            return self._create(key, views, size)
        with self._locks[hash(key) % LOCKS]:
            return self._put_unless(key, views, size, self._bucket.size(key))

    def _create(self, key: str, views: Sequence[memoryview], size: int) -> Outcome:
        """Store an object unless one of its size is there, which the server is to find out."""
        try:
            self._bucket.put(key, views, create=True)
        except S3Error as error:
            if error.fault is not Fault.EXISTS:
                raise
            found = self._bucket.size(key)
            if found is None:  # deleted meanwhile, or put and deleted while we put
                error.retryable = True
                raise
            return self._put_unless(key, views, size, found)
        return Outcome.OK

    def _put_unless(
        self, key: str, views: Sequence[memoryview], size: int, found: int | None
    ) -> Outcome:
        """Store an object unless what was found has its size: another cannot be the one meant."""
        if found == size:
            return Outcome.EXISTED
        self._bucket.put(key, views)
        return Outcome.OK
