"""Credentials that are given for a token: to containers, machines of AWS and web identities.

Whoever gives them is asked here and not by obstore, which would follow redirects, hides who kept
silent, and wants a token file of every container.
"""

import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlencode, urlsplit

from unikv.backends.s3_keyring import NoKeysError
from unikv.backends.s3_sign import Keys
from unikv.backends.s3_url import is_endpoint
from unikv.backends.s3_web import Ask, ask, make_trust
from unikv.errors import StoreError

Fetch: TypeAlias = Callable[[float], Keys]

IMDS = "http://169.254.169.254"
CONTAINER = "http://169.254.170.2"
CONTAINER_HOSTS = ("169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost")
STS_VERSION = "2011-06-15"
LIFE_S = 3600  # that is asked for; a role allows no less
WAIT_S = 21600  # that a token of a machine is good for

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_NAMES = ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")
_PLAIN = re.compile(r"[!-~]{1,16384}\Z")
_LINE = re.compile(r"[!-~]([ -~]{0,16384}[!-~])?\Z")  # what may stand in a header


def of_web_identity(
    environment: Mapping[str, str], region: str, authorities: bytes | None
) -> Fetch | None:
    """Return how a web identity gets its keys, None if the variables name none.

    Raises:
        StoreError: they name one by half, or its token cannot be read.
    """
    path = environment.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if not path:
        return None
    role = environment.get("AWS_ROLE_ARN")
    if not role:
        raise StoreError("AWS_WEB_IDENTITY_TOKEN_FILE names a token: want AWS_ROLE_ARN, too")
    _read("AWS_WEB_IDENTITY_TOKEN_FILE", path)
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    url = (
        environment.get("AWS_ENDPOINT_URL_STS")
        or environment.get("AWS_STS_ENDPOINT")
        or f"https://sts.{region}.{domain}"
    )
    if not (is_endpoint(url) and _may_get_token(url)):
        raise StoreError("AWS_ENDPOINT_URL_STS: want https://host, or http:// to this machine")
    trust = make_trust(authorities)
    session = environment.get("AWS_ROLE_SESSION_NAME") or "WebIdentitySession"

    def fetch(seconds: float) -> Keys:
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "DurationSeconds": LIFE_S,
            "RoleArn": role,
            "RoleSessionName": session,
            "Version": STS_VERSION,
            "WebIdentityToken": _read("AWS_WEB_IDENTITY_TOKEN_FILE", path),
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        request = Ask("POST", f"{url.rstrip('/')}/", headers, urlencode(form).encode())
        who = f"the token service {url}"
        text = _ask(who, request, seconds, trust=trust, proxied=True)
        names = (*_NAMES[:2], "SessionToken", "Expiration")
        found = [re.search(rf"<{name}>\s*([^<\s]+)\s*</{name}>", text) for name in names]
        return _keys(who, [each[1] if each else None for each in found])

    return fetch


def of_container(environment: Mapping[str, str]) -> Fetch | None:
    """Return how a container gets its keys, None if the variables name no place.

    Raises:
        StoreError: the place is none that a token should go to, or the token cannot be read.
    """
    relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if not relative and not url:
        return None
    if relative:
        url = f"{CONTAINER}{relative}"
    assert url is not None
    if not _may_get_token(url):
        raise StoreError(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI: want https://, or http:// to this machine or to "
            f"{' or '.join(CONTAINER_HOSTS[:3])}"
        )
    path = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    given = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    if path:
        _read("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", path)
    elif given and not _LINE.match(given.strip()):
        raise StoreError("AWS_CONTAINER_AUTHORIZATION_TOKEN: want one line of ASCII")

    def fetch(seconds: float) -> Keys:
        token = _read("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", path) if path else given
        headers = {"Authorization": token.strip()} if token else {}
        who = f"the container's {urlsplit(url).netloc.rpartition('@')[2]}"
        return _of_json(who, _ask(who, Ask("GET", url, headers), seconds))

    return fetch


def of_machine(environment: Mapping[str, str]) -> Fetch:
    """Return how a machine of AWS gets its keys, from its metadata service."""
    url = machine_url(environment)
    old = environment.get("AWS_IMDSV1_FALLBACK", "").lower() in ("1", "true")
    who = f"the metadata service {url}"

    def fetch(seconds: float) -> Keys:
        until = time.monotonic() + seconds

        def step(verb: str, path: str, headers: Mapping[str, str]) -> str:
            left = max(until - time.monotonic(), 0.001)
            return _ask(who, Ask(verb, f"{url}/latest/{path}", headers), left, whole=seconds)

        headers = {}
        try:
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(WAIT_S)}
            token = step("PUT", "api/token", life).strip()
            if not _PLAIN.match(token):
                raise NoKeysError(f"{who} answers oddly")
            headers["X-aws-ec2-metadata-token"] = token
        except _RefusedError as error:
            if not (old and error.status == HTTPStatus.FORBIDDEN):
                raise
        roles = step("GET", "meta-data/iam/security-credentials/", headers).split()
        if not roles or not re.fullmatch(r"[\w+=,.@-]{1,64}", roles[0], re.ASCII):
            raise NoKeysError(f"{who} knows no role of this machine")
        path = f"meta-data/iam/security-credentials/{roles[0]}"
        return _of_json(who, step("GET", path, headers))

    return fetch


def machine_url(environment: Mapping[str, str]) -> str:
    """Return where the metadata service of a machine is.

    Raises:
        StoreError: the variable that moves it is wrong.
    """
    url = environment.get("AWS_METADATA_ENDPOINT") or IMDS
    if not is_endpoint(url):
        raise StoreError("AWS_METADATA_ENDPOINT: want http://host or http://host:port")
    return url.rstrip("/")


class _RefusedError(NoKeysError):
    """Another status than 200."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, retryable=status in _PASSING)
        self.status = status


def _ask(
    who: str,
    request: Ask,
    seconds: float,
    *,
    trust: ssl.SSLContext | None = None,
    proxied: bool = False,
    whole: float | None = None,
) -> str:
    """Return what was answered.

    Raises:
        NoKeysError: nothing, or no success.
    """
    try:
        answer = ask(request, seconds, trust=trust, proxied=proxied)
    except TimeoutError:
        waited = f"{who} did not answer in {whole or seconds:g} s"
        raise NoKeysError(waited, retryable=True, silent=True) from None
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason or "TLS failed"
        raise NoKeysError(f"{who} is not trusted: {why}") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise NoKeysError(f"{who} cannot be asked: {why:.200}", retryable=True) from None
    if answer.status != HTTPStatus.OK:
        raise _RefusedError(f"{who} answered {answer.status}", answer.status)
    return answer.body.decode("utf-8", "replace")


def _of_json(who: str, text: str) -> Keys:
    """Return the keys in an answer of a container's or machine's service."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise NoKeysError(f"{who} answers oddly: want JSON with {', '.join(_NAMES)}")
    return _keys(who, [values.get(name) for name in _NAMES])


def _keys(who: str, values: list[object]) -> Keys:
    """Return checked keys: name, secret, token, and when they run out."""
    access, secret, token, until = values
    good = isinstance(access, str) and isinstance(secret, str) and isinstance(token, str | None)
    try:
        expires = None if until is None else datetime.fromisoformat(str(until)).timestamp()
    except (ValueError, OverflowError):
        good, expires = False, None
    keys = Keys(str(access), str(secret), str(token) if token else None, expires)
    if not (good and keys.sound):
        raise NoKeysError(f"{who} answers oddly: want {', '.join(_NAMES)}")
    if expires is not None and expires <= time.time():
        raise NoKeysError(f"{who} gave keys that have run out: is the clock right?")
    return keys


def _may_get_token(url: str) -> bool:
    """Tell whether a URL is one, and safe to send a token to."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url and "#" not in url
    if not plain or not is_endpoint(f"{parts.scheme}://{parts.netloc}"):
        return False
    if parts.scheme.lower() == "https" or host in CONTAINER_HOSTS:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _read(name: str, path: str) -> str:
    """Return the token in a file that a variable names."""
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not ASCII"
        raise NoKeysError(f"{name}={path!r:.300}: {why}") from None
    if not _LINE.match(text):
        raise NoKeysError(f"{name}={path!r:.300}: want a token in it, on one line")
    return text
