"""S3Place: what an ``s3://`` URL and the environment say, checked. It opens no connection."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

from unikv.backends.url import StoreUrl
from unikv.errors import UrlError
from unikv.store import KEY_BYTES

OPTIONS = (
    *("allow_http", "anonymous", "endpoint", "profile", "region"),
    *("style", "threads", "timeout", "unsigned"),
)
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
TIMEOUT_S = 30.0
THREADS = 16
PATH_BYTES = 1024  # of a key as S3 counts it, prefix and all

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}\Z")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?\Z")


@dataclass(frozen=True, slots=True)
class S3Place:
    """Where objects go and how they are asked for. It holds no credentials.

    ``endpoint`` is None for AWS itself; ``region`` is None where neither URL nor environment
    names one.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    virtual: bool = False
    anonymous: bool = False
    unsigned: bool = False
    allow_http: bool = False
    timeout_s: float = TIMEOUT_S
    threads: int = THREADS

    def path(self, key: str) -> str:
        """Return what S3 calls the key of an object."""
        return f"{self.prefix}/{key}" if self.prefix else key

    @property
    def server(self) -> str:
        """The endpoint as messages name it."""
        return self.endpoint or "AWS"

    @property
    def bucket_endpoint(self) -> str | None:
        """The endpoint as obstore wants it: with the bucket in it if the style is virtual."""
        if self.endpoint is None or not self.virtual:
            return self.endpoint
        parts = urlsplit(self.endpoint)
        return urlunsplit(parts._replace(netloc=f"{self.bucket}.{parts.netloc}"))


def place_of(url: StoreUrl, environment: Mapping[str, str]) -> S3Place:
    """Read an ``s3://`` URL; what it leaves open the usual variables of AWS may say.

    Raises:
        UrlError: a part or option of it is wrong.
    """
    url.refuse_options_except(*OPTIONS)
    if not _BUCKET.match(url.authority):
        raise UrlError(
            f"store URL {url.shown!r:.200}: want s3:// and a bucket of 3 to 63 characters of "
            "[A-Za-z0-9._-], as in s3://bucket/prefix; a host goes into endpoint=, and "
            "credentials into the environment or a profile"
        )
    endpoint = url.options.get("endpoint") or next(
        (environment[name] for name in ENDPOINTS if environment.get(name)), None
    )
    allow_http = url.flag(
        "allow_http", default=environment.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
    )
    return S3Place(
        bucket=url.authority,
        prefix=_prefix(url),
        endpoint=_endpoint(url, endpoint, allow_http=allow_http) if endpoint else None,
        region=url.options.get("region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
        or None,
        profile=url.options.get("profile"),
        virtual=_virtual(url, endpoint),
        anonymous=url.flag("anonymous"),
        unsigned=url.flag("unsigned"),
        allow_http=allow_http,
        timeout_s=_number(url, "timeout", TIMEOUT_S, 0.1, 3600),
        threads=int(_number(url, "threads", THREADS, 1, 256, whole=True)),
    )


def url_text(url: StoreUrl) -> str:
    """Return a URL that opens the same store elsewhere."""
    options = "&".join(f"{name}={quote(value, safe='')}" for name, value in url.options.items())
    return f"{url.scheme}://{url.authority}{quote(url.path)}{'?' if options else ''}{options}"


def _prefix(url: StoreUrl) -> str:
    """Return what all keys begin with, without the slashes around it."""
    prefix = url.path.strip("/")
    wrong = [part for part in prefix.split("/") if part in ("", ".", "..")] if prefix else []
    if wrong or not prefix.isprintable() or "\\" in prefix:
        raise UrlError(
            f"store URL {url.shown!r:.200}: want a prefix of printable parts between single "
            r"slashes, none of them . or .., and no \ in them"
        )
    most = PATH_BYTES - KEY_BYTES - 1
    if len(prefix.encode()) > most:
        raise UrlError(f"store URL {url.shown!r:.200}: want a prefix of at most {most} bytes")
    return prefix


def _endpoint(url: StoreUrl, text: str, *, allow_http: bool) -> str:
    """Check an endpoint; return it without a slash at its end."""
    parts = urlsplit(text)
    if (
        parts.scheme not in ("http", "https")
        or not _HOST.match(parts.netloc)
        or parts.query
        or parts.fragment
        or not text.isprintable()
    ):
        # Not shown: somebody may have put credentials into it.
        raise UrlError(
            f"store URL {url.shown!r:.200}: endpoint: want http(s)://host or http(s)://host:port, "
            "without credentials, as in endpoint=https://s3.example.org:9000"
        )
    if parts.scheme == "http" and not allow_http:
        raise UrlError(
            f"store URL {url.shown!r:.200}: endpoint {text!r:.200} is not encrypted: "
            "want https://, or say allow_http=1"
        )
    return text.rstrip("/")


def _virtual(url: StoreUrl, endpoint: str | None) -> bool:
    """Return whether the bucket goes into the host name; by default on AWS alone."""
    style = url.options.get("style")
    if style is None:
        # A certificate for *.s3.amazonaws.com does not hold for a bucket with a dot in its name.
        return endpoint is None and "." not in url.authority
    if style not in ("path", "virtual"):
        raise UrlError(f"store URL {url.shown!r:.200}: option style: want path or virtual")
    return style == "virtual"


def _number(
    url: StoreUrl, name: str, default: float, least: float, most: float, *, whole: bool = False
) -> float:
    """Return a number between two bounds."""
    text = url.options.get(name)
    if text is None:
        return default
    if re.fullmatch(r"[0-9]{1,9}" if whole else r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        number = float(text)
        if least <= number <= most:
            return number
    raise UrlError(
        f"store URL {url.shown!r:.200}: option {name}={text!r:.40}: "
        f"want {'a whole number' if whole else 'a number'} from {least:g} to {most:g}"
    )
