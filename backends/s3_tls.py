"""S3 TLS: which authorities a store trusts, and what a failed handshake says. It knows no objects.

What the server shows is always checked. obstore does it, and says why it refused by text only.
"""

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from unikv.backends.batch import explain
from unikv.backends.s3_url import S3Place
from unikv.errors import StoreError

BEGIN = b"-----BEGIN CERTIFICATE-----"
SOURCES = "ca_certs= or AWS_CA_BUNDLE"

_BLOCK = re.compile(BEGIN + rb"[^-]+-----END CERTIFICATE-----")
# The first line is obstore's own as far as this; what a server answered would stand there, too.
_NOT_SENT = re.compile(r"(?:(?!status code:)[^\n])*: error sending request\n")
_NOT_BUILT = re.compile(r"[^\n]*: builder error\n")
_FAILED = re.compile(
    r"\b(InvalidCertificate|InvalidMessage|PeerIncompatible|AlertReceived)\("
    r"(?:\s*Other(?:Error)?\()*\s*(\w{1,60})"
)
_CONNECTING = re.compile(r"\bkind: Connect\b")
_BOUND = re.compile(r"\bnot_(?:after|before): UnixTime\(\s*(\d{1,11})\b")
_NAMES = re.compile(r'"(?:DnsName|IpAddress)\((?:\\")?([A-Za-z0-9.:*_-]{1,253})(?:\\")?\)"')
_NAMES_SHOWN = 4
_LASTING_ALERTS = frozenset(
    {"CertificateRequired", "HandshakeFailure", "InsufficientSecurity", "ProtocolVersion"}
)


def read_authorities(path: str) -> bytes:
    """Return the certificates in a PEM file, without what else stands there, such as keys.

    Raises:
        StoreError: it cannot be read, or holds no certificate, or one that is none.
    """
    doing = f"read the authorities in {path!r:.300} ({SOURCES})"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise explain(doing, error) from error
    blocks = _BLOCK.findall(data)
    if not blocks:
        raise StoreError(f"{doing}: want certificates in PEM, {BEGIN.decode()}")
    if len(blocks) < data.count(BEGIN):
        raise StoreError(f"{doing}: a certificate in it is not whole")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # only to parse them
    for number, block in enumerate(blocks, 1):
        try:
            context.load_verify_locations(cadata=ssl.PEM_cert_to_DER_cert(block.decode("ascii")))
        except (ssl.SSLError, ValueError):
            raise StoreError(f"{doing}: certificate {number} in it is none") from None
    return b"\n".join(blocks)


def explain_tls(text: str, place: S3Place) -> str | None:
    """Return why TLS keeps all requests from the server until somebody changes something.

    None if it is not that: connections break off while they are made, too.

    Args:
        text: what obstore says.
        place: whom it asked.
    """
    if _NOT_BUILT.match(text):
        return _unbuilt(text, place)
    found = _FAILED.search(text) if _NOT_SENT.match(text) else None
    if found is None:
        return None
    kind, name = found.groups()
    if kind == "InvalidCertificate":
        return f"the certificate of {place.server} {_flaw(name, text, place)}"
    if kind == "InvalidMessage" and _CONNECTING.search(text):
        return (
            f"{place.server} does not speak TLS: want the port of it that does, or http:// and "
            "allow_http=1"
        )
    if kind == "PeerIncompatible" or (kind == "AlertReceived" and name in _LASTING_ALERTS):
        return (
            f"{place.server} refuses our TLS ({name}): want TLS 1.2 or 1.3, and a server that asks "
            "for no certificate of the client"
        )
    return None


def _unbuilt(text: str, place: S3Place) -> str | None:
    """Return why obstore could not make a client."""
    if "No CA certificates were loaded" in text:
        # Even where TLS is not asked for: credentials might be.
        return (
            "no certificate authorities on this machine: want the package ca-certificates, or "
            f"SSL_CERT_FILE, or {SOURCES} for an https:// endpoint"
        )
    if "ertificate" in text and place.ca_certs:
        return f"obstore does not take a certificate in {place.ca_certs!r:.300} ({SOURCES})"
    return None


def _flaw(name: str, text: str, place: S3Place) -> str:
    """Return what is wrong with a certificate."""
    known = f"{place.ca_certs!r:.300} and the system" if place.ca_certs else "the system"
    if name == "UnknownIssuer":
        return (
            f"is signed by an authority unknown to {known}: want that one's PEM file in {SOURCES}, "
            "and a server that sends the certificates between"
        )
    if name == "BadSignature":
        return (
            f"is not signed by the authority of that name that {known} has: want the PEM file of "
            f"the right one in {SOURCES}"
        )
    if name.startswith(("Expired", "NotValidYet")):
        bound = _BOUND.search(text)
        when = f" ({_moment(int(bound[1]))})" if bound else ""
        what = "has expired" if name.startswith("Expired") else "is not valid yet"
        return f"{what}{when}: want a new one, or the clock set, which says {_moment()}"
    if name.startswith("NotValidForName"):
        host = urlsplit(place.bucket_endpoint or "").hostname or "the bucket's host"
        names = _NAMES.findall(text)
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        return f"is not for {host} but for {shown or 'no host: want one with subjectAltName'}"
    if name == "CaUsedAsEndEntity":
        return "is an authority's (CA:TRUE): want one of the server's own, which that may sign"
    return f"is refused: {name}"


def _moment(seconds: int | None = None) -> str:
    """Return a time, now unless it is given, for people."""
    when = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return f"{when:%Y-%m-%d %H:%M} UTC"
