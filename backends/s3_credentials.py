"""S3 credentials: where they are, in the order that AWS's own tools look. They are never shown.

What stands in variables, files and profiles is read here; profiles that need a login or a role go
through boto3 if it is installed.
"""

import socket
import time
from collections.abc import Mapping
from configparser import ConfigParser, Error
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from unikv.backends.s3_keyring import EARLY_S, Aside, Keyring, NoKeysError
from unikv.backends.s3_sign import Keys
from unikv.backends.s3_tokens import Fetch, machine_url, of_container, of_machine, of_web_identity
from unikv.backends.s3_url import is_region
from unikv.errors import MissingExtraError, StoreError

REGION = "us-east-1"
IMDS_WAIT_S = 1.0  # a machine of AWS answers in milliseconds, a laptop never
BOTO3_S = 600.0  # what boto3 gives is good for that long; it is asked again after half of it
FRESH_S = 1200.0  # then files are read again: their keys may have been exchanged

_BY_BOTO3 = (
    *("credential_process", "credential_source", "login_session", "role_arn", "sso_session"),
    *("sso_start_url", "web_identity_token_file"),
)
"""Settings of a profile that gets its keys from elsewhere."""

_MACHINE_OFF = ("1", "true")


class Access(NamedTuple):
    """Where credentials come from: none if ``keyring`` is None, and nothing is signed."""

    keyring: Keyring | None
    region: str | None = None  # of the profile

    def __repr__(self) -> str:
        return "Access(...)"


def find_access(
    profile: str | None,
    environment: Mapping[str, str],
    *,
    region: str | None = None,
    authorities: bytes | None = None,
    seconds: float = 30.0,
) -> Access:
    """Find out where credentials come from.

    The order is that of AWS's tools: the profile that the URL names; AWS_ACCESS_KEY_ID and its
    fellows; AWS_PROFILE or the default profile; the token of a web identity or a container; the
    machine itself.

    Args:
        profile: what the URL names.
        environment: the variables.
        region: where the service of web identities is asked.
        authorities: whom to trust there beside those of the system.
        seconds: how long a profile's program or login may take.

    Raises:
        StoreError: there are none, or not all of them.
        MissingExtraError: the profile needs boto3.
    """
    files = _files(environment)
    if profile is not None:
        return _of_profile(profile, files, seconds)
    given = [environment.get(n, "") for n in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    if all(given):
        token = environment.get("AWS_SESSION_TOKEN") or environment.get("AWS_TOKEN")
        keys = Keys(given[0], given[1], token)
        if not keys.sound:
            raise StoreError(
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN: one of them holds a "
                "space or a line break, maybe at its end"
            )
        return Access(Keyring(lambda _: keys))
    if any(given):
        raise StoreError("want both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither")
    named = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    if named:
        return _of_profile(named, files, seconds)
    if {"aws_access_key_id", *_BY_BOTO3} & set(_section("default", files)):
        return _of_profile("default", files, seconds)
    fetch = of_web_identity(environment, region or REGION, authorities) or of_container(environment)
    if fetch is None and _on_machine(environment):
        fetch = of_machine(environment)
    if fetch is not None:
        return Access(Keyring(fetch))
    raise StoreError(
        "no credentials for S3: neither AWS_ACCESS_KEY_ID nor a profile in "
        f"{' or '.join(map(str, files))}, no token of a container or web identity, and no "
        "metadata service of a machine; want one of them, or anonymous=1 for a public bucket"
    )


def _files(environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the files of AWS's tools: that of credentials, and that of settings."""
    home = Path(environment.get("HOME") or "/").expanduser()
    named = (
        environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
        environment.get("AWS_CONFIG_FILE") or "~/.aws/config",
    )
    paths = [home / name[2:] if name.startswith("~/") else Path(name) for name in named]
    return paths[0], paths[1]


def _of_profile(name: str, files: tuple[Path, Path], seconds: float) -> Access:
    """Return the access that a profile gives."""
    section = _section(name, files)
    if not section:
        raise StoreError(f"no profile {name!r:.80} in {' or '.join(map(str, files))}")
    region = section.get("region")
    if region is not None and not is_region(region):
        raise StoreError(f"profile {name!r:.80}: region {region!r:.80}: want one as eu-west-1")
    if not section.get("aws_access_key_id"):
        return Access(Keyring(_by_boto3(name, seconds)), region)

    def read(_: float) -> Keys:
        try:
            section = _section(name, files)
            key, secret = section["aws_access_key_id"], section["aws_secret_access_key"]
        except KeyError as error:
            raise NoKeysError(f"profile {name!r:.80}: want {error.args[0]}") from None
        except StoreError as error:
            raise NoKeysError(str(error)) from None
        until = time.time() + FRESH_S + EARLY_S
        return Keys(key, secret, section.get("aws_session_token"), until)

    read(0)
    return Access(Keyring(read), region)


def _section(name: str, files: tuple[Path, Path]) -> dict[str, str]:
    """Return what both files say of a profile; that of credentials has the last word."""
    found: dict[str, str] = {}
    for path, title in zip(reversed(files), (f"profile {name}", name), strict=True):
        parser = ConfigParser(interpolation=None, default_section="\0", strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, UnicodeError, Error):
            # Not chained: the parser's message quotes the line, which may be a secret.
            raise StoreError(f"cannot read {path}: want sections with lines key = value") from None
        for section in {title, "default"} if name == "default" else {title}:
            if parser.has_section(section):
                found.update(parser.items(section))
    return found


def _by_boto3(name: str, seconds: float) -> Fetch:
    """Return how a profile without keys of its own gets some: a role, a login, a process."""
    try:
        from boto3 import Session
        from botocore.exceptions import BotoCoreError, InvalidConfigError
    except ImportError as error:
        raise MissingExtraError(
            f"profile {name!r:.80} has no aws_access_key_id, and boto3, which knows other kinds "
            "of profiles, is not installed: pip install boto3",
            name=error.name,
        ) from error
    try:
        session = Session(profile_name=name)
    except (BotoCoreError, ValueError) as error:
        raise StoreError(f"profile {name!r:.80} gives no credentials: {error}") from None

    def call() -> Keys:
        given = session.get_credentials()  # a process is run here, and a service asked
        if given is None:
            raise NoKeysError(f"profile {name!r:.80} has no keys")
        keys = given.get_frozen_credentials()  # these are renewed by then
        until = time.time() + BOTO3_S
        return Keys(str(keys.access_key), str(keys.secret_key), keys.token or None, until)

    aside = Aside(call)

    def fetch(seconds: float) -> Keys:
        try:
            return aside.result(seconds)
        except NoKeysError:
            raise
        except Exception as error:  # noqa: BLE001 - of any service or process; it may hold secrets
            kind = type(error).__name__
            silent = "Timeout" in kind
            what = f"{kind}: {error}" if isinstance(error, InvalidConfigError) else kind
            why = f"in {seconds:g} s" if silent else f"({what:.300})"
            told = f"profile {name!r:.80} gave no keys {why}"
            raise NoKeysError(told, retryable=True, silent=silent) from None

    fetch(seconds)
    return fetch


def _on_machine(environment: Mapping[str, str]) -> bool:
    """Return whether a metadata service answers, as on a machine of AWS with a role."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() in _MACHINE_OFF:
        return False
    where = urlsplit(machine_url(environment))
    try:
        address = (where.hostname or "", where.port or (443 if where.scheme == "https" else 80))
        socket.create_connection(address, IMDS_WAIT_S).close()
    except (OSError, ValueError):
        return False
    return True
