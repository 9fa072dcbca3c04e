"""Interop: boto3 reads what S3Store wrote, and the other way round. It starts no server."""

from urllib.parse import quote

import pytest

from tests.backends.s3_open import open_s3
from tests.servers.s3_server import S3Server
from unikv.store import Entry, Item, Span
from unikv.testing_data import EXISTED, MISS, OK, content, page_key, read

SIZES = (0, 1, 4096, 300_000)


class Interop:
    """Tests that want a fixture ``server``, and its keys in the environment."""

    @pytest.mark.parametrize("prefix", ["", "one", "a/b.c/d-e", "mit Leerzeichen+ü%41"])
    def test_boto3_reads_what_the_store_wrote(self, server: S3Server, prefix: str) -> None:
        store = open_s3(server.address, quote(prefix))
        client = server.address.client()
        for size in SIZES:
            key = page_key(size)
            data = content(key, size)
            assert store.put([Item(key, [data[:7], data[7:]])], replace=True).ok
            name = f"{prefix}/{key}" if prefix else key
            found = client.get_object(Bucket="unikv", Key=name)
            assert found["Body"].read() == data
            assert found["ContentLength"] == size
        assert store.delete([page_key(size) for size in SIZES]).ok
        listed = client.list_objects_v2(Bucket="unikv", Prefix=f"{prefix}/" if prefix else "")
        names = [each["Key"] for each in listed.get("Contents", [])]
        assert [name for name in names if page_key(0)[:8] in name] == []

    def test_the_store_reads_what_boto3_wrote(self, server: S3Server) -> None:
        client = server.address.client()
        store = open_s3(server.address, "theirs")
        for size in SIZES:
            key = page_key(size)
            client.put_object(Bucket="unikv", Key=f"theirs/{key}", Body=content(key, size))
            assert list(store.stat([key])) == [size]
            assert read(store, key, 0, size) == content(key, size)
            assert list(store.put([Item(key, [b"x" * size])]).codes) == [EXISTED]
        client.put_object(Bucket="unikv", Key="theirs/.not-a-key", Body=b"")
        client.put_object(Bucket="unikv", Key="theirs/folder/key", Body=b"")
        client.put_object(Bucket="unikv", Key="theirs2/key", Body=b"")
        entries = sorted(store.list())
        assert [entry[:2] for entry in entries] == sorted((page_key(size), size) for size in SIZES)
        assert all(isinstance(entry, Entry) and entry.mtime for entry in entries)
        client.delete_object(Bucket="unikv", Key=f"theirs/{page_key(1)}")
        assert read(store, page_key(1), 0, 1) == MISS

    def test_B93_what_boto3_does_is_seen_at_once(self, server: S3Server) -> None:
        client = server.address.client()
        store = open_s3(server.address, "seen")
        assert list(store.stat(["key"])) == [None]
        client.put_object(Bucket="unikv", Key="seen/key", Body=b"four")
        assert list(store.stat(["key"])) == [4]
        assert read(store, "key", 0, 4) == b"four"
        client.put_object(Bucket="unikv", Key="seen/key", Body=b"longer now")
        assert list(store.stat(["key"])) == [10]
        assert read(store, "key", 0, 10) == b"longer now"
        assert [entry.size for entry in store.list()] == [10]

    def test_more_objects_than_a_page_of_a_listing(self, server: S3Server) -> None:
        store = open_s3(server.address, "many")
        keys = [page_key(i) for i in range(1050)]
        assert store.put([Item(key, [b"x"]) for key in keys], replace=True).ok
        assert sorted(entry.key for entry in store.list()) == sorted(keys)
        some = [key for key in keys if key.startswith("a")]
        assert sorted(entry.key for entry in store.list("a")) == sorted(some)
        assert store.delete(keys).ok

    def test_a_range_reads_no_more_than_itself(self, server: S3Server) -> None:
        store = open_s3(server.address, "range")
        data = content("key", 100_000)
        assert list(store.put([Item("key", [data])]).codes) == [OK]
        out = bytearray(3000)
        view = memoryview(out)
        spans = [
            Span("key", i * 30_000, i * 30_000 + 1000, [view[i * 1000 :][:1000]]) for i in range(3)
        ]
        assert store.get(spans).ok
        assert out == data[:1000] + data[30_000:31_000] + data[60_000:61_000]
