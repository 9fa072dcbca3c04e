"""What a server refuses is explained, says whether it may pass, and shows nothing secret."""

from collections.abc import Callable, Iterator

import pytest
import redis

from tests.servers.redis_fake import FakeRedis
from tests.servers.redis_server import RedisServer, free_port, valkey_binary
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Outcomes, Span, Store

pytestmark = pytest.mark.redis

SECRET = b"VALUE-" * 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(valkey_binary(), tmp_path_factory.mktemp("valkey")) as server:
        server.ask("ACL", "SETUSER", "reader", "on", ">pass:word", "+@read", "+ping", "~unikv:a*")
        yield server


def put(store: Store) -> Outcomes:
    return store.put([Item("key", [SECRET])])


def get(store: Store) -> Outcomes:
    return store.get([Span("key", 0, 9, [memoryview(bytearray(9))])])


def delete(store: Store) -> Outcomes:
    return store.delete(["key"])


REFUSALS = [  # what the server says, what we make of it, whether it may pass
    ("OOM command not allowed when used memory > 'maxmemory'.", "the server is full", False),
    ("READONLY You can't write against a read only replica.", "is a replica", True),
    ("LOADING Redis is loading the dataset in memory", "still loading its data", True),
    ("MASTERDOWN Link with MASTER is down", "lost its master", True),
    ("CLUSTERDOWN Hash slot not served", "the cluster is down", True),
    ("TRYAGAIN Multiple keys request during rehashing of slot", "moving", True),
    ("BUSY Redis is busy running a script.", "busy with a script", True),
    ("NOAUTH Authentication required.", "wants a password", False),
    ("NOPERM User kv has no permissions to run the 'set' command", "no right to", False),
    ("WRONGPASS invalid username-password pair", "refused user name and password", False),
    ("MISCONF Redis is configured to save RDB snapshots", "cannot save to its disk", False),
    ("NOREPLICAS Not enough good replicas to write.", "too few replicas", True),
    ("MOVED 3999 10.0.0.1:6381", "add cluster=1 to the URL", False),
    ("ASK 3999 10.0.0.1:6381", "add cluster=1 to the URL", False),
    ("ERR max number of clients reached", "max number of clients reached", True),
    (
        "ERR unknown command 'SET', with args beginning with: 'k' 'VALUE-VALUE",
        "unknown comm",
        False,
    ),
    ('ERR odd "VALUE-" and more', "odd (ERR)", False),
    ("ERR", "refused (ERR)", False),
    ("VALUE", "refused", False),
    ("", "refused (no code)", False),
]


@pytest.mark.parametrize(("reply", "meaning", "passing"), REFUSALS)
@pytest.mark.parametrize("call", [put, get, delete])
def test_each_refusal_is_explained(
    reply: str,
    meaning: str,
    passing: bool,  # noqa: FBT001 - a case's answer
    call: Callable[[Store], Outcomes],
) -> None:
    def answer(words: list[bytes]) -> bytes:
        return b":0\r\n" if words[0] in {b"STRLEN", b"EXISTS"} else f"-{reply}\r\n".encode()

    with FakeRedis(answer) as fake:
        store = open_store(fake.url)
        (error,) = call(store).errors.values()
        store.close()
    text = str(error)
    assert meaning in text
    assert "'key'" in text
    assert error.retryable is passing
    assert "VALUE-" not in text
    assert "10.0.0.1" not in text


def test_a_refused_look_fails_the_put_and_no_value_is_sent() -> None:
    with FakeRedis(lambda _: b"-NOPERM no\r\n") as fake:
        store = open_store(fake.url)
        (error,) = put(store).errors.values()
        assert "STRLEN: the user has no right" in str(error)
        for keys in (["key"], ["key", "other", "../x"]):
            with pytest.raises(StoreError, match="the user has no right") as denied:
                store.stat(keys)  # a store that lets nobody in is not empty
            assert not denied.value.retryable
        assert store.stat(["../x"]) == [None]
        assert [words[0] for words in fake.commands] == [b"STRLEN"] * 4
        with pytest.raises(StoreError, match=r"SCAN of 127\.0\.0\.1:[0-9]+: the user has no right"):
            list(store.list())
        store.close()


def test_a_command_that_the_server_does_not_have_shows_no_value(server: RedisServer) -> None:
    """A server's own words quote the arguments: here it is asked for real."""
    reply = server.ask("SETT", "key", SECRET)
    assert SECRET[:12] in reply  # what must not be passed on
    with FakeRedis(lambda w: b":0\r\n" if w[0] in {b"STRLEN", b"EXISTS"} else reply) as fake:
        store = open_store(fake.url)
        text = str(put(store).errors[0])
        store.close()
    assert "VALUE" not in text
    assert "unknown command" in text


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ("reader:WRONG@", "wants another user name or password"),
        ("nobody:WRONG@", "wants another user name or password"),
    ],
)
def test_a_wrong_password_is_said_at_open(server: RedisServer, user: str, message: str) -> None:
    for front in (f"redis://{user}127.0.0.1:{server.port}", f"unix://{user}{server.unix}"):
        with pytest.raises(StoreError, match=message) as caught:
            open_store(front)
        assert not caught.value.retryable
        assert "WRONG" not in str(caught.value)


def test_a_password_that_is_wanted_is_asked_for(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "requirepass", "open:sesame")
    try:
        with pytest.raises(StoreError, match=r"user:password@ in the URL") as caught:
            open_store(server.url)
        assert not caught.value.retryable
        store = open_store(f"redis://:open%3Asesame@127.0.0.1:{server.port}/0")
        assert put(store).ok
        store.close()
    finally:
        with redis.Redis(port=server.port, password="open:sesame") as client:
            client.config_set("requirepass", "")


def test_rights_end_where_the_acl_says(server: RedisServer) -> None:
    """A user who may read keys of one kind reads those, and is told of the others."""
    owner = open_store(server.url)
    owner.put([Item(key, [SECRET]) for key in ("abc", "key")])
    store = open_store(f"redis://reader:pass%3Aword@127.0.0.1:{server.port}/0")
    assert store.stat(["abc", "key"]) == [len(SECRET), None]
    data = bytearray(9)
    spans = [Span(key, 0, 9, [memoryview(data)]) for key in ("key", "abc")]
    outcomes = store.get(spans)
    assert "GETRANGE: the user has no right to the command or to the key" in str(outcomes.errors[0])
    assert list(outcomes.errors) == [0]
    assert data == SECRET[:9]
    assert list(store.put([Item("abc", [b"x"])]).errors) == [0]
    assert list(store.delete(["abc"]).errors) == [0]
    owner.close()
    store.close()


def test_nobody_there_is_said_at_open() -> None:
    for url in (f"redis://127.0.0.1:{free_port()}", "unix:///run/there/is/none"):
        with pytest.raises(StoreError, match=r"connect to .*(refused|No such file)") as caught:
            open_store(url)
        assert caught.value.retryable
    with pytest.raises(StoreError, match=r"connect to no-such-host\.invalid:6379") as caught:
        open_store("redis://no-such-host.invalid")
    assert caught.value.retryable


def test_a_server_of_another_kind_is_said_at_open() -> None:
    with FakeRedis(lambda _: b"") as fake:
        fake.greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        with pytest.raises(StoreError, match="connect to") as caught:
            open_store(fake.url)
    assert "Bad Request" not in str(caught.value)


def test_a_database_that_is_not_there_is_said_at_open(server: RedisServer) -> None:
    with pytest.raises(StoreError, match="no database 99: want 0 to databases - 1") as caught:
        open_store(f"redis://127.0.0.1:{server.port}/99")
    assert not caught.value.retryable


def test_too_many_clients_is_said_at_open(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxclients", 1)
    try:
        first = open_store(server.url)
        with pytest.raises(StoreError, match="connect to") as caught:
            open_store(server.url)
        assert caught.value.retryable
        first.close()
    finally:
        server.ask("CONFIG", "SET", "maxclients", 100)
