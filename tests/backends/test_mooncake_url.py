"""A ``mooncake://`` URL says what a client needs; what is wrong in it gets one clear error."""

import pytest

from unikv.backends.mooncake_url import Place, Settings, settings_of
from unikv.backends.url import parse_url
from unikv.errors import UrlError


def settings(text: str) -> Settings:
    return settings_of(parse_url(text))


def test_a_master_is_enough() -> None:
    assert settings("mooncake://10.0.0.1:50051") == Settings(
        Place("10.0.0.1", 50051),
        "P2PHANDSHAKE",
        "tcp",
        "",
        None,
        0,
        64 << 20,
        16 << 20,
        None,
        None,
        2,
    )


def test_every_option_is_read() -> None:
    found = settings(
        "mooncake://master:50051/?metadata=etcd://m:2379&protocol=rdma&device=mlx5_0,mlx5_1"
        "&host=10.0.0.7&segment=4GiB&buffer=1048576&local=0&admin=[::1]:9003&timeout=3&wait=0"
    )
    assert found == Settings(
        Place("master", 50051),
        "etcd://m:2379",
        "rdma",
        "mlx5_0,mlx5_1",
        "10.0.0.7",
        4 << 30,
        1 << 20,
        0,
        Place("::1", 9003),
        3,
        0,
    )
    assert str(found.admin) == "[::1]:9003"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mooncake://", "want mooncake://host:port"),
        ("mooncake://master", "want mooncake://host:port"),
        ("mooncake://master:0", "want mooncake://host:port"),
        ("mooncake://master:99999", "want mooncake://host:port"),
        ("mooncake://:50051", "want mooncake://host:port"),
        ("mooncake://me:SECRET@master:50051", r"\*\*\*@master:50051"),
        ("mooncake://master:50051/prefix", "no path"),
        ("mooncake://master:50051?devices=x", "unknown option 'devices'; it takes admin, buffer"),
        ("mooncake://master:50051?protocol=udp", "option protocol: want tcp or rdma"),
        ("mooncake://master:50051?segment=much", "option segment: want bytes"),
        ("mooncake://master:50051?segment=8MiB", "option segment: want none, or at least 16777216"),
        ("mooncake://master:50051?buffer=4096", "option buffer: want at least 1048576 bytes"),
        ("mooncake://master:50051?admin=9003", "option admin: want host:port"),
        ("mooncake://master:50051?timeout=0", "option timeout: want at least 1 second"),
        ("mooncake://master:50051?timeout=1.5", "option timeout: want whole seconds"),
        ("mooncake://master:50051?wait=-1", "option wait: want whole seconds"),
        ("mooncake://a..b:50051", "want mooncake://host:port"),
        (f"mooncake://{'a' * 64}:50051", "want mooncake://host:port"),
        ("mooncake://master:50051?metadata=redis://m:6379", "option metadata: want P2PHANDSHAKE"),
        ("mooncake://master:50051?metadata=http://me:SECRET%40m/", "metadata: want P2PHANDSHAKE"),
    ],
)
def test_what_is_wrong_is_said(url: str, words: str) -> None:
    with pytest.raises(UrlError, match=words) as caught:
        settings(url)
    assert "SECRET" not in str(caught.value)
