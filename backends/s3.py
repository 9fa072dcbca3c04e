"""S3Store: objects in a bucket of S3 or of a server that speaks it. It knows no KV."""

import os
from collections.abc import Callable, Iterator, Sequence

from unikv.backends.batch import Batch, explain, raise_outage
from unikv.backends.s3_bucket import Bucket
from unikv.backends.s3_credentials import Access, find_access
from unikv.backends.s3_errors import S3Error, ends_call
from unikv.backends.s3_fork import GUARD
from unikv.backends.s3_read import read_object
from unikv.backends.s3_threads import Helpers
from unikv.backends.s3_tls import read_authorities
from unikv.backends.s3_url import S3Place, place_of, url_text
from unikv.backends.s3_write import Writer
from unikv.backends.url import StoreUrl
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Entry, Item, Opener, Outcome, Outcomes, Span, check_key


class S3Store:
    """A `unikv.store.Store` in a bucket. Believes nothing it saw before: others write too.

    Opening it asks the server nothing. A call has up to ``place.threads`` objects under way at
    once. A request ends after ``place.timeout_s`` seconds, and what the call had not asked by then
    fails untried, so that a dead server costs a call one timeout, not one a key. So it is with a
    server that is not trusted, and where there are no credentials.

    Args:
        place: bucket, prefix, endpoint and how to speak to it.
        access: where its credentials come from.
        opener: how another process opens an equal store.

    Raises:
        StoreError: the file of authorities holds none, or cannot be read.
    """

    costly_stat = True
    """Each size is a request of its own."""

    def __init__(self, place: S3Place, access: Access, opener: Opener | None = None) -> None:
        if GUARD.barred:
            GUARD.enter()  # raises
        self.place = place
        if opener is not None:
            self.opener = opener
        self._bucket = Bucket(place, access)
        self._writer = Writer(self._bucket)
        self._helpers = Helpers(place.threads - 1)
        self._closed = False

    def __repr__(self) -> str:
        return f"S3Store('s3://{self.place.bucket}/{self.place.prefix}', at={self.place.server!r})"

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store each object in one request, uncopied; see `unikv.store.Store.put`."""
        self._require_open()
        batch = Batch(len(items))
        keys = [key for key, _ in items]
        try:
            create = bool(items) and not replace and self._bucket.knows_if_absent()
        except S3Error as error:  # not one of the items would fare better
            for position, key in enumerate(keys):
                batch.fail(position, f"put {key!r:.200}", error)
            return batch.outcomes()

        def put(position: int) -> Outcome:
            return self._writer.put(items[position], replace=replace, create=create)

        self._one_by_one("put", keys, batch, put)
        return batch.outcomes()

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Read into each span's views, with one copy; see `unikv.store.Store.get`.

        Spans of one object are asked for at once. If it is replaced meanwhile, each of them may
        be of either version.
        """
        self._require_open()
        batch = Batch(len(spans))
        keys = [span.key for span in spans]

        def read(positions: Sequence[int]) -> S3Error | None:
            return read_object(self._bucket, spans, positions, batch)

        self._each_key("get", keys, batch, read)
        return batch.outcomes()

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return each object's size, None if it cannot be told; see `unikv.store.Store.stat`.

        Where all are missing, a store that never saw its bucket asks whether there is one.

        Raises:
            StoreError: the server answered for no key, or there is no bucket.
        """
        self._require_open()
        sizes: list[int | None] = [None] * len(keys)

        def look(position: int) -> Outcome:
            check_key(keys[position])
            sizes[position] = self._bucket.size(keys[position])
            return Outcome.OK

        batch = Batch(len(keys))
        self._one_by_one("stat", keys, batch, look)
        faults = [e for e in batch.errors.values() if not isinstance(e.__cause__, KeyFormatError)]
        raise_outage(len(keys) - len(batch.errors) + len(faults), faults)
        if len(batch.errors) < len(keys) and sizes == [None] * len(keys):
            missing = next(key for at, key in enumerate(keys) if at not in batch.errors)
            try:
                self._bucket.require(missing)
            except S3Error as error:
                raise explain(f"stat {missing!r}", error) from error
        return sizes

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove each object; see `unikv.store.Store.delete`.

        S3 does not say whether there was one, so that is asked before: of two who delete the same
        at once, both may be told that they did.
        """
        self._require_open()
        batch = Batch(len(keys))

        def delete(position: int) -> Outcome:
            check_key(keys[position])
            if self._bucket.sure_size(keys[position]) is None:
                return Outcome.MISS
            self._bucket.delete(keys[position])
            return Outcome.OK

        self._one_by_one("delete", keys, batch, delete)
        return batch.outcomes()

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Stream the objects, a thousand a request; see `unikv.store.Store.list`."""
        self._require_open()
        return self._bucket.list(prefix)

    def close(self) -> None:
        """End the threads; see `unikv.store.Store.close`."""
        self._closed = True
        self._helpers.close()
        self._bucket.close()

    def _one_by_one(
        self, verb: str, keys: Sequence[str], batch: Batch, do: Callable[[int], Outcome]
    ) -> None:
        """Call ``do`` with each position, those of one key in order; note what it returns."""

        def each(positions: Sequence[int]) -> S3Error | None:
            end: S3Error | None = None
            for position in positions:
                try:
                    if end is not None:
                        raise end.of_another(self.place)
                    batch.codes[position] = do(position)
                except (KeyFormatError, StoreError) as error:
                    batch.fail(position, f"{verb} {keys[position]!r:.200}", error)
                    if end is None and isinstance(error, S3Error) and ends_call(error):
                        end = error
            return end

        self._each_key(verb, keys, batch, each)

    def _each_key(
        self,
        verb: str,
        keys: Sequence[str],
        batch: Batch,
        do: Callable[[Sequence[int]], S3Error | None],
    ) -> None:
        """Call ``do`` with the positions of each key, in threads.

        It returns the error that no other request would escape; then no more is asked in this call.
        """
        jobs: dict[str, list[int]] = {}
        for position, key in enumerate(keys):
            jobs.setdefault(key, []).append(position)
        end: S3Error | None = None

        def job(positions: Sequence[int]) -> None:
            nonlocal end
            if end is None:
                found = do(positions)
                end = end or found
            else:
                for position in positions:
                    another = end.of_another(self.place)
                    batch.fail(position, f"{verb} {keys[position]!r:.200}", another)

        self._helpers.run(list(jobs.values()), job)
        if batch.errors:
            batch.errors = dict(sorted(batch.errors.items()))

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"this S3 store is closed: {self!r}")
        GUARD.enter()


def open_url(url: StoreUrl) -> S3Store:
    """Open ``s3://bucket/prefix``; see docs/s3.md for its options and for credentials.

    Raises:
        UrlError: a part or option of the URL is wrong.
        StoreError: there are no credentials, or no authorities where ``ca_certs`` says.
        MissingExtraError: they need boto3.
    """
    place = place_of(url, os.environ)
    access = Access(None)
    if not place.anonymous:
        authorities = read_authorities(place.ca_certs) if place.ca_certs is not None else None
        access = find_access(
            place.profile,
            os.environ,
            region=place.region,
            authorities=authorities,
            seconds=place.timeout_s,
        )
    return S3Store(place, access, Opener("unikv.registry", "open_store", [url_text(url)]))
