"""S3 credentials: where they are, in the order that AWS's own tools look. They are never shown.

obstore finds what stands in variables, and asks containers and machines; files and profiles are
read here, those that need a login or a role through boto3 if it is installed.
"""

import socket
from collections.abc import Mapping
from configparser import ConfigParser, Error
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from unikv.errors import MissingExtraError, StoreError

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3CredentialProvider

IMDS = "http://169.254.169.254"
IMDS_WAIT_S = 1.0  # a machine of AWS answers in milliseconds, a laptop never
FRESH = timedelta(minutes=20)  # then files are read again: their keys may have been exchanged

_BY_TOKEN = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_MACHINE_OFF = ("1", "true")


class Access(NamedTuple):
    """How obstore gets credentials: from ``provider``, or by its own search if that is None."""

    provider: "S3CredentialProvider | None"
    region: str | None = None  # of the profile

    def __repr__(self) -> str:
        return "Access(...)"


def find_access(profile: str | None, environment: Mapping[str, str]) -> Access:
    """Find out where credentials come from.

    The order is that of AWS's tools: the profile that the URL names; AWS_ACCESS_KEY_ID and its
    fellows; AWS_PROFILE or the default profile; the token of a container or a web identity; the
    machine itself.

    Raises:
        StoreError: there are none, or not all of them.
        MissingExtraError: the profile needs boto3.
    """
    files = _files(environment)
    if profile is not None:
        return _of_profile(profile, files)
    given = [environment.get(n, "") for n in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    if all(given):
        return Access(None)
    if any(given):
        raise StoreError("want both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither")
    named = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    if named:
        return _of_profile(named, files)
    if _section("default", files).get("aws_access_key_id"):
        return _of_profile("default", files)
    if any(environment.get(name) for name in _BY_TOKEN) or _on_machine(environment):
        return Access(None)
    raise StoreError(
        "no credentials for S3: neither AWS_ACCESS_KEY_ID nor a profile in "
        f"{' or '.join(map(str, files))}, no token of a container or web identity, and no "
        "metadata service of a machine; want one of them, or anonymous=1 for a public bucket"
    )


def _files(environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the files of AWS's tools: that of credentials, and that of settings."""
    home = Path(environment.get("HOME") or "/").expanduser() / ".aws"
    return (
        Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"),
        Path(environment.get("AWS_CONFIG_FILE") or home / "config"),
    )


def _of_profile(name: str, files: tuple[Path, Path]) -> Access:
    """Return the access that a profile gives."""
    section = _section(name, files)
    if not section:
        raise StoreError(f"no profile {name!r:.80} in {' or '.join(map(str, files))}")
    region = section.get("region")
    if not section.get("aws_access_key_id"):
        return Access(_by_boto3(name), region)

    def read() -> "S3Credential":
        section = _section(name, files)
        try:
            key, secret = section["aws_access_key_id"], section["aws_secret_access_key"]
        except KeyError as error:
            raise StoreError(f"profile {name!r:.80}: want {error.args[0]}") from None
        token = section.get("aws_session_token")
        return {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": token,
            "expires_at": datetime.now(UTC) + FRESH,
        }

    read()
    return Access(read, region)


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


def _by_boto3(name: str) -> "S3CredentialProvider":
    """Return a provider of a profile without keys of its own: a role, a login, a process."""
    try:
        from boto3 import Session
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingExtraError(
            f"profile {name!r:.80} has no aws_access_key_id, and boto3, which knows other kinds "
            "of profiles, is not installed: pip install boto3",
            name=error.name,
        ) from error
    try:
        return Boto3CredentialProvider(Session(profile_name=name))
    except (BotoCoreError, ValueError) as error:
        raise StoreError(f"profile {name!r:.80} gives no credentials: {error}") from None


def _on_machine(environment: Mapping[str, str]) -> bool:
    """Return whether a metadata service answers, as on a machine of AWS with a role."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() in _MACHINE_OFF:
        return False
    where = urlsplit(environment.get("AWS_METADATA_ENDPOINT") or IMDS)
    try:
        address = (where.hostname or "", where.port or 80)
        socket.create_connection(address, IMDS_WAIT_S).close()
    except (OSError, ValueError):
        return False
    return True
