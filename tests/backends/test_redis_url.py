"""Redis URLs: every part and option is checked, and no error or repr shows a secret."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends.redis_url import Node, RedisPlace, Tls, parse_place
from unikv.backends.url import parse_url
from unikv.errors import UrlError

DATABASE = "the path: want the number of a database, 0 or more"


def place(text: str) -> RedisPlace:
    return parse_place(parse_url(text))


@pytest.mark.parametrize(
    ("text", "node", "shown"),
    [
        ("redis://localhost", Node("localhost", 6379), "redis://localhost:6379/0"),
        ("redis://kv:7000/", Node("kv", 7000), "redis://kv:7000/0"),
        ("redis://kv:7000", Node("kv", 7000), "redis://kv:7000/0"),
        ("redis://kv:7000/5/", Node("kv", 7000), "redis://kv:7000/5"),
        ("redis://kv:7000/5", Node("kv", 7000), "redis://kv:7000/5"),
        ("redis://[::1]:7000/2", Node("::1", 7000), "redis://[::1]:7000/2"),
        ("redis://u:p@kv/0?cluster=1", Node("kv", 6379), "redis://kv:6379/0?cluster=1"),
        ("rediss://:p@kv/0", Node("kv", 6379), "rediss://kv:6379/0"),
        ("unix:///run/my%20kv.sock", Node("/run/my kv.sock", 0), "unix:///run/my kv.sock?db=0"),
        ("unix://u:p@/run/kv?db=3", Node("/run/kv", 0), "unix:///run/kv?db=3"),
    ],
)
def test_a_url_names_a_server(text: str, node: Node, shown: str) -> None:
    assert place(text).node == node
    assert str(place(text)) == shown


def test_what_is_not_said_has_a_bound() -> None:
    found = place("redis://kv")
    assert (found.connect_timeout, found.timeout, found.connections) == (5, 30, 16)
    assert (found.prefix, found.ttl, found.db, found.cluster, found.tls) == (
        "unikv:",
        None,
        0,
        False,
        None,
    )


def test_options_are_taken() -> None:
    found = place(
        "redis://kv/2?prefix=a/b:&ttl=3600&connect_timeout=0.5&timeout=7&connections=3&cluster=0"
    )
    assert found == RedisPlace(
        Node("kv", 6379),
        db=2,
        prefix="a/b:",
        ttl=3600,
        connect_timeout=0.5,
        timeout=7,
        connections=3,
    )


def test_user_and_password_are_decoded() -> None:
    found = place("redis://kv%3Awriter:s%3Ae%40c%2Fr@kv/0")
    assert (found.username, found.password) == ("kv:writer", "s:e@c/r")
    assert place("redis://:secret@kv").username is None


def test_a_user_without_password_takes_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("REDISCLI_AUTH", raising=False)
    with pytest.raises(UrlError, match=r"want user:password@, or REDISCLI_AUTH set"):
        place("redis://writer@kv")
    monkeypatch.setenv("REDISCLI_AUTH", "SECRET")
    assert place("redis://writer@kv").password == "SECRET"
    assert place("redis://kv").password is None  # who names nobody is nobody


def test_tls_has_its_files(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    text = f"rediss://kv?ca_certs={tmp_path}/ca&certfile={tmp_path}/cert&keyfile={tmp_path}/key"
    assert place(text).tls == Tls(f"{tmp_path}/ca", f"{tmp_path}/cert", f"{tmp_path}/key")
    assert place("rediss://kv?check_hostname=0").tls == Tls(check_hostname=False)
    with pytest.raises(UrlError, match=r"option keyfile: want the certfile"):
        place(f"rediss://kv?keyfile={tmp_path}/key")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("redis://", "want redis://host:port/db"),
        ("redis:///0", "want redis://host:port/db"),
        ("redis://a:b:c/0", "want redis://host:port/db"),
        ("redis://kv:SECRET/0", "want redis://host:port/db"),
        ("redis://kv:0/0", "port 0: want 1 to 65535"),
        ("redis://a..b/0", "host 'a..b': want a name or an address"),
        (f"redis://:SECRET@{'a' * 64}.com/0", "want a name or an address"),
        ("redis://kv:70000/0", "port 70000: want 1 to 65535"),
        ("redis://kv/SECRET", f"{DATABASE}: redis://localhost:6379/0; our keys"),
        ("rediss://kv/SECRET", f"{DATABASE}: rediss://localhost:6379/0; our keys"),
        ("redis://kv/-1", DATABASE),
        ("redis://kv/1/2", DATABASE),
        ("redis://kv//1", DATABASE),
        ("redis://kv//", DATABASE),
        ("redis://kv/1.0", DATABASE),
        ("redis://kv/0x1", DATABASE),
        ("redis://kv/+1", DATABASE),
        ("redis://kv/%D9%A1", DATABASE),
        ("redis://kv/9999999999", DATABASE),
        ("unix:///run/x?db=-1", "option db: want a whole number from 0"),
        ("unix:///run/x?db=SECRET", "option db: want a whole number from 0"),
        ("redis://kv/3?cluster=1", "a cluster has database 0 alone"),
        ("redis://kv?prefix={SECRET}", "option prefix: want"),
        ("redis://kv?prefix=a*", "option prefix: want"),
        ("redis://kv?ttl=0", "option ttl: want a whole number from 1"),
        ("redis://kv?ttl=SECRET", "option ttl: want a whole number from 1"),
        ("redis://kv?timeout=0", "option timeout: want seconds above 0"),
        ("redis://kv?timeout=nan", "option timeout: want seconds above 0"),
        ("redis://kv?timeout=inf", "option timeout: want seconds above 0"),
        ("redis://kv?connect_timeout=SECRET", "option connect_timeout: want seconds"),
        ("redis://kv?connections=0", "option connections: want a whole number from 1"),
        ("redis://kv?ca_certs=/x", "unknown option 'ca_certs'"),
        ("redis://kv?db=1", "option db: want the database as the path: redis://localhost:6379/0"),
        ("rediss://kv/1?db=1", "option db: want the database as the path: rediss://"),
        ("redis://kv:/0", "want redis://host:port/db"),
        ("redis://:6379/0", "want redis://host:port/db"),
        ("redis://kv?cluster=yes", "option cluster: want 1 or 0"),
        ("rediss://kv?ca_certs=/SECRET", "option ca_certs: there is no such file"),
        ("unix://kv/run/x", "want unix:///path/of/socket"),
        ("unix:///", "want unix:///path/of/socket"),
        ("unix:///run/x?cluster=1", "unknown option 'cluster'"),
        ("redis://%ff:SECRET@kv", "want percent escapes of UTF-8"),
    ],
)
def test_a_wrong_part_says_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(UrlError, match="store URL") as caught:
        place(text)
    assert message in str(caught.value)
    assert "SECRET" not in str(caught.value).partition("': ")[2]


def test_nothing_shows_a_password() -> None:
    found = place("redis://USER:SECRET@kv/0")
    for shown in (str(found), repr(found), f"{found}"):
        assert "SECRET" not in shown
        assert "USER" not in shown


@pytest.mark.parametrize("package", ["redis", "hiredis"])
@pytest.mark.parametrize("url", ["redis://kv", "rediss://kv", "unix:///run/kv"])
def test_each_scheme_needs_both_packages(package: str, url: str) -> None:
    """Without hiredis replies would be read at half of the speed: it is no option."""
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {package!r}: raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from unikv.errors import MissingExtraError\n"
        "from unikv.registry import open_store\n"
        f"try: open_store({url!r})\n"
        "except MissingExtraError as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"needs {package}, which is not installed: pip install 'unikv[redis]'" in found.stdout


PLACES = st.builds(
    RedisPlace,
    st.one_of(
        st.builds(Node, st.sampled_from(["kv", "::1", "a.b-c"]), st.integers(1, 65535)),
        st.builds(
            Node,
            st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1).map(
                "/".__add__
            ),
            st.just(0),
        ),
    ),
    db=st.integers(0, 15),
    password=st.one_of(st.none(), st.text(min_size=1)),
    prefix=st.from_regex(r"[0-9A-Za-z_.:/-]{0,64}", fullmatch=True),
    ttl=st.one_of(st.none(), st.integers(1, 10**8)),
    timeout=st.floats(0.01, 1000),
    connect_timeout=st.floats(0.01, 1000),
    connections=st.integers(1, 100),
)


@given(PLACES, st.text())
def test_a_place_is_found_again_by_its_secret_url(found: RedisPlace, user: str) -> None:
    if found.password:
        found = RedisPlace(
            **{name: getattr(found, name) for name in found.__slots__} | {"username": user or None}
        )
    assert place(found.secret_url) == found


def test_tls_and_cluster_are_found_again(tmp_path: Path) -> None:
    (tmp_path / "ca&x").touch()
    tls = Tls(f"{tmp_path}/ca&x", check_hostname=False)
    found = RedisPlace(Node("kv", 1), tls=tls, cluster=True, username="u", password="p?#@/")
    assert place(found.secret_url) == found
