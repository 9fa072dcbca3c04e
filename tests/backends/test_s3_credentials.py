"""Where S3 credentials come from: the order of AWS's own tools, and no long wait for a machine."""

import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.s3_open import open_s3
from tests.io_path.lab import within
from tests.servers.s3_hostile import Server, hostile
from unikv.backends.s3 import open_url
from unikv.backends.s3_credentials import find_access
from unikv.backends.url import parse_url
from unikv.errors import MissingExtraError, StoreError

CREDENTIALS = """[default]
aws_access_key_id = default-key
aws_secret_access_key = default-SECRET
[cache]
aws_access_key_id = cache-key
aws_secret_access_key = cache-SECRET%x
aws_session_token = cache-token
"""
CONFIG = """[default]
region = eu-central-1
s3 =
  max_concurrent_requests = 20
[profile cache]
region = eu-west-3
[profile process]
credential_process = echo '{"Version": 1, "AccessKeyId": "p-key", "SecretAccessKey": "p-SECRET"}'
[profile half]
aws_access_key_id = half-key
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with hostile() as server:
        server.objects["p/key"] = b"data"
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a home with both files, and an environment that says nothing else."""
    import os

    for name in list(os.environ):
        if name.startswith("AWS_") and name != "AWS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return tmp_path


def used(server: Server, **options: object) -> tuple[str, str, str | None]:
    """Open a store and make a request; return key, region and token that it was signed with."""
    address = server.address
    query = "&".join(f"{name}={value}" for name, value in options.items())
    store = open_url(parse_url(f"s3://unikv/p?endpoint={address.endpoint}&allow_http=1&{query}"))
    assert store.stat(["key"]) == [4]
    store.close()
    headers = {name.lower(): value for name, value in server.requests[-1].headers.items()}
    signed = re.search(r"Credential=([^/]+)/\d+/([^/]+)/s3/", headers.get("authorization", ""))
    assert signed, headers
    return signed[1], signed[2], headers.get("x-amz-security-token")


def test_a_named_profile_comes_first(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-SECRET")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    assert used(server, profile="cache") == ("cache-key", "eu-west-3", "cache-token")
    assert used(server, profile="default") == ("default-key", "eu-central-1", None)
    assert used(server, profile="cache", region="mine") == ("cache-key", "mine", "cache-token")


def test_then_variables_then_the_profile_of_the_environment_then_the_default(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert used(server) == ("default-key", "eu-central-1", None)
    monkeypatch.setenv("AWS_PROFILE", "cache")
    assert used(server) == ("cache-key", "eu-west-3", "cache-token")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-SECRET")
    assert used(server) == ("env-key", "us-east-1", None)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    monkeypatch.setenv("AWS_REGION", "env-region")
    assert used(server) == ("env-key", "env-region", "env-token")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(StoreError, match="want both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        used(server)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "other"))
    (home / "other").write_text("[cache]\naws_access_key_id = o\naws_secret_access_key = SECRET\n")
    assert used(server)[0] == "o"


def test_an_endpoint_of_the_url_wins_over_one_of_the_environment(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert used(server)[0] == "default-key"


def test_anonymous_requests_are_not_signed(server: Server, home: Path) -> None:
    (home / ".aws" / "credentials").unlink()
    store = open_s3(server.address, "p", anonymous=1)
    assert store.stat(["key"]) == [4]
    assert "authorization" not in {name.lower() for name in server.requests[-1].headers}


def test_a_profile_with_a_process_or_a_role_goes_through_boto3(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home
    pytest.importorskip("boto3")
    assert used(server, profile="process")[0] == "p-key"
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match=r"boto3.* is not installed: pip install boto3"):
        used(server, profile="process")


@pytest.mark.parametrize("kind", ["credential_process = echo '{}'", "role_arn = arn:x"])
def test_a_default_profile_without_keys_goes_through_boto3_unnamed(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As AWS's own tools; and a file may be named from the home."""
    pytest.importorskip("boto3")
    (home / ".aws" / "credentials").unlink()
    text = '{"Version": 1, "AccessKeyId": "p-key", "SecretAccessKey": "p-SECRET"}'
    (home / "moved").write_text(f"[default]\n{kind.format(text)}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", "~/moved")
    if "process" in kind:
        (home / "moved").write_text(f"[default]\ncredential_process = echo '{text}'\n")
        assert used(server)[0] == "p-key"
    else:
        with pytest.raises(
            StoreError, match=r"profile 'default' gave no keys \(PartialCredentials"
        ):
            used(server)


def test_a_profile_that_is_half_written_is_told_what_it_lacks(server: Server, home: Path) -> None:
    pytest.importorskip("boto3")
    text = "[profile role]\nrole_arn = arn:x\nsource_profile = none\n"
    (home / ".aws" / "config").write_text(text)
    with pytest.raises(StoreError, match='InvalidConfigError: The source_profile "none" ref'):
        used(server, profile="role")


def test_a_program_that_hangs_is_not_waited_for(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when the store is opened nor, since it was good then, in a call."""
    pytest.importorskip("boto3")
    program, hangs = home / "program", home / "hangs"
    program.write_text(
        "#!/bin/sh\n"
        f"if [ -e {hangs} ]; then echo $$ > {hangs}; exec sleep 30; fi\n"
        """echo '{"Version": 1, "AccessKeyId": "p-key", "SecretAccessKey": "p-SECRET",'\n"""
        """echo '"SessionToken": "t", "Expiration": "'$(date -u -d +5sec +%FT%TZ)'"}'\n"""
    )
    program.chmod(0o755)
    (home / ".aws" / "config").write_text(f"[profile slow]\ncredential_process = {program}\n")
    store = open_s3(server.address, "p", profile="slow", timeout=1, threads=4)
    hangs.touch()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3000)
    keys = [f"k{i}" for i in range(20)]
    for _ in range(2):  # the second waits for the same program
        with within(1.0), pytest.raises(StoreError, match="'slow' gave no keys in 1 s") as caught:
            store.stat(keys)
        assert caught.value.retryable
    with within(1.0), pytest.raises(StoreError, match="'slow' gave no keys in 1 s"):
        open_s3(server.address, "p", profile="slow", timeout=1)
    assert server.requests == []
    store.close()


@pytest.mark.parametrize("name", ["ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"])
def test_a_line_break_at_the_end_is_told_when_the_store_is_opened(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As of a secret that was made from a file: obstore would panic."""
    given = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "hunter2", "SESSION_TOKEN": "hunter2"}
    for each, value in given.items():
        monkeypatch.setenv(f"AWS_{each}", value + "\n" * (each == name))
    with pytest.raises(StoreError, match="a space or a line break") as caught:
        open_s3(server.address, "p")
    assert "hunter2" not in str(caught.value)
    assert home


@pytest.mark.parametrize(
    ("profile", "says"),
    [("none", "no profile 'none' in "), ("half", "want aws_secret_access_key")],
)
def test_a_profile_that_gives_nothing_is_an_error(home: Path, profile: str, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        find_access(profile, {"HOME": str(home)})


def test_a_broken_file_is_named_and_not_quoted(home: Path) -> None:
    (home / ".aws" / "credentials").write_text("aws_secret_access_key SECRET\n")
    with pytest.raises(StoreError, match=r"cannot read .*credentials: want sections") as caught:
        find_access("cache", {"HOME": str(home)})
    assert caught.value.__cause__ is None
    assert "SECRET" not in repr(caught.value)


def test_keys_that_were_exchanged_in_the_file_are_read_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = find_access("cache", {"HOME": str(home)})
    assert access.keyring is not None
    assert access.keyring.keys(1).access == "cache-key"
    text = CREDENTIALS.replace("cache-key", "new-key")
    (home / ".aws" / "credentials").write_text(text)
    assert access.keyring.keys(1).access == "cache-key"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1199)
    assert access.keyring.keys(1).access == "cache-key"
    monkeypatch.setattr(time, "time", lambda: now + 1201)
    assert access.keyring.keys(1).access == "new-key"
    assert "SECRET" not in f"{access!r}{access.keyring!r}{access.keyring.keys(1)!r}"
    assert "SECRET" not in repr(vars(access.keyring))


# A machine's own credentials


def test_no_credentials_is_an_error_at_once(home: Path) -> None:
    (home / ".aws" / "credentials").unlink()
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"no credentials for S3: .* or anonymous=1"):
        open_url(parse_url("s3://bucket"))
    assert time.monotonic() - start < 0.5


def test_a_machine_that_does_not_answer_costs_a_second(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".aws" / "credentials").unlink()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # no room for a second: it answers no SYN, as no machine would
        first.connect(full.getsockname())
        second.settimeout(0)
        second.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
        start = time.monotonic()
        with pytest.raises(StoreError, match="no metadata service"):
            open_url(parse_url("s3://bucket"))
        assert time.monotonic() - start < 1.5


def test_a_machine_that_refuses_is_told_from_the_server(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".aws" / "credentials").unlink()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.address.endpoint)
    store = open_s3(server.address, "p")  # something answers there
    outcomes = store.delete(["key"])
    assert "no credentials for http" in str(outcomes.errors[0])
    assert "want AWS_ACCESS_KEY_ID" in str(outcomes.errors[0])


@pytest.mark.parametrize("unsigned", [0, 1])
def test_a_body_is_signed_unless_the_url_says_otherwise(
    server: Server, home: Path, unsigned: int
) -> None:
    from unikv.store import Item

    assert home
    open_s3(server.address, "p", unsigned=unsigned).put([Item("a", [b"x"])], replace=True)
    sha = {name.lower(): v for name, v in server.requests[-1].headers.items()}[
        "x-amz-content-sha256"
    ]
    assert (sha == "UNSIGNED-PAYLOAD") == bool(unsigned)


def test_the_bucket_may_stand_in_the_host(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a proxy, since no resolver knows the name."""
    assert home
    monkeypatch.setenv("HTTP_PROXY", server.address.endpoint)
    address = server.address._replace(endpoint="http://s3.test")
    assert open_s3(address, "p", style="virtual").stat(["key"]) == [4]
    assert server.requests[-1].target == "http://unikv.s3.test/p/key"
    assert open_s3(address, "p", style="path").stat(["key"]) == [4]
    assert server.requests[-1].target == "http://s3.test/unikv/p/key"
