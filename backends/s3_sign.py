"""Signature 4 of AWS, of requests without a body. It makes none.

obstore signs what it asks for itself; this is for what it cannot ask.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from unikv.backends.s3_web import Ask

_PLAIN = re.compile(r"[!-~]{1,16384}\Z")
EMPTY = hashlib.sha256(b"").hexdigest()
SERVICE = "s3"


class Keys(NamedTuple):
    """Credentials. They are never shown.

    ``expires`` is when they run out, in seconds since the epoch; None if they do not.
    """

    access: str
    secret: str
    token: str | None = None
    expires: float | None = None

    def __repr__(self) -> str:
        return "Keys(...)"

    @property
    def sound(self) -> bool:
        """Whether they can be sent; obstore panics at a line break in what goes into headers."""
        sent = (self.access, self.token or "-")
        return all(map(_PLAIN.match, sent)) and bool(self.secret) and self.secret.isprintable()


def signed_get(
    url: str,
    query: Mapping[str, str],
    keys: Keys | None,
    region: str,
    *,
    extra: Mapping[str, str] | None = None,
    now: datetime | None = None,
) -> Ask:
    """Return a GET of a URL that has no query, with one; unsigned if there are no keys.

    Args:
        url: its path is made of characters that need no escape, but for those it has.
        query: names and values, not escaped.
        keys: who asks.
        region: where.
        extra: headers in lower case, signed too.
        now: the time, this moment unless given.
    """
    parts = urlsplit(url)
    pairs = sorted((quote(name, safe="-_.~"), quote(query[name], safe="-_.~")) for name in query)
    text = "&".join(f"{name}={value}" for name, value in pairs)
    headers = {"host": parts.netloc, **(extra or {})}
    if keys is not None:
        headers |= _sign(parts.path or "/", text, headers, keys, region, now or datetime.now(UTC))
    shown = {"Host" if name == "host" else name: value for name, value in headers.items()}
    return Ask("GET", f"{url}?{text}", shown)


def _sign(
    path: str, query: str, given: Mapping[str, str], keys: Keys, region: str, now: datetime
) -> dict[str, str]:
    """Return the headers that a signature takes."""
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-content-sha256": EMPTY, "x-amz-date": moment}
    if keys.token:
        added["x-amz-security-token"] = keys.token
    headers = {**given, **added}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    request = f"GET\n{path}\n{query}\n{lines}\n{names}\n{EMPTY}"
    scope = f"{moment[:8]}/{region}/{SERVICE}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    secret = f"AWS4{keys.secret}".encode()
    for part in scope.split("/"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    told = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
    signature = hmac.new(secret, told.encode(), hashlib.sha256).hexdigest()
    added["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    )
    return added
