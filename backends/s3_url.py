"""S3Place: what an ``s3://`` URL and the environment say, checked. It opens no connection."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import quote, urlsplit, urlunsplit

from unikv.backends.url import StoreUrl, is_host
from unikv.errors import UrlError
from unikv.store import KEY_BYTES

OPTIONS = (
    *("allow_http", "anonymous", "ca_certs", "endpoint", "profile"),
    *("region", "style", "threads", "timeout", "unsigned"),
)
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
TIMEOUT_S = 30.0
CONNECT_S = 5.0
THREADS = 16
PATH_BYTES = 1024  # of a key as S3 counts it, prefix and all

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}\Z")
_REGION = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_ENDPOINT = re.compile(
    r"(?i:https?)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9._~-]+)*/*\Z"
)


@dataclass(frozen=True, slots=True)
class S3Place:
    """Where objects go and how they are asked for. It holds no credentials.

    ``endpoint`` is None for AWS itself; ``region`` is None where neither URL nor environment
    names one. ``ca_certs`` is the path of a PEM file with authorities that are trusted beside
    those of the system.
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
    ca_certs: str | None = None
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
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        return self.endpoint is None or not _is_plain(self.endpoint)

    @property
    def host(self) -> str | None:
        """The name or address of the endpoint; None for AWS itself."""
        return urlsplit(self.endpoint).hostname if self.endpoint else None

    @property
    def connect_s(self) -> float:
        """Seconds that a connection may take, TLS and all."""
        return min(CONNECT_S, self.timeout_s)

    @property
    def bucket_endpoint(self) -> str | None:
        """The endpoint as obstore wants it: with the bucket in it if the style is virtual."""
        if self.endpoint is None or not self.virtual:
            return self.endpoint
        parts = urlsplit(self.endpoint)
        return urlunsplit(parts._replace(netloc=f"{self.bucket}.{parts.netloc}"))

    def bucket_url(self, region: str) -> str:
        """Return where the bucket itself is, as obstore asks for it."""
        endpoint = self.bucket_endpoint
        if endpoint is None:
            host = f"s3.{region}.amazonaws.com"
            endpoint = f"https://{self.bucket}.{host}" if self.virtual else f"https://{host}"
        return endpoint if self.virtual else f"{endpoint}/{self.bucket}"


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
    if endpoint is not None:
        endpoint = _endpoint(url, endpoint, allow_http=allow_http)
    return S3Place(
        bucket=url.authority,
        prefix=_prefix(url),
        endpoint=endpoint,
        region=_region(url, environment),
        profile=url.options.get("profile"),
        virtual=_virtual(url, endpoint),
        anonymous=url.flag("anonymous"),
        unsigned=url.flag("unsigned"),
        allow_http=allow_http,
        ca_certs=_ca_certs(url, endpoint, environment),
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
    if not is_endpoint(text):
        # Not shown: somebody may have put credentials into it.
        raise UrlError(
            f"store URL {url.shown!r:.200}: endpoint: want http(s)://host or http(s)://host:port, "
            "without credentials, as in endpoint=https://s3.example.org:9000"
        )
    if _is_plain(text) and not allow_http:
        raise UrlError(
            f"store URL {url.shown!r:.200}: endpoint {text!r:.200} is not encrypted: "
            "want https://, or say allow_http=1"
        )
    return text.rstrip("/")


def is_endpoint(text: str) -> bool:
    """Tell whether a text is an http(s) URL of a server, as obstore and a socket take it.

    obstore panics at one that is none, and not before it is asked for something.
    """
    parts = _ENDPOINT.match(text)
    if parts is None or not 0 < int(parts["port"] or 1) < 2**16:
        return False
    host = parts["host"]
    if host.startswith("[") or host.rstrip(".").rpartition(".")[2][:1].isdigit():
        return _is_address(host.strip("[]"))  # 127.1 is another name of 127.0.0.1 to some
    return is_host(host)


def is_region(text: str) -> bool:
    """Tell whether a text can name a region: it goes into headers and host names."""
    return bool(_REGION.match(text))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_plain(endpoint: str) -> bool:
    return urlsplit(endpoint).scheme == "http"


def _region(url: StoreUrl, environment: Mapping[str, str]) -> str | None:
    """Return the region that the URL names, or a variable."""
    named = ("AWS_REGION", "AWS_DEFAULT_REGION")
    region = url.options.get("region") or next(filter(None, map(environment.get, named)), None)
    if region is None or is_region(region):
        return region
    raise UrlError(
        f"store URL {url.shown!r:.200}: region {region!r:.80}, of the URL or {named[0]}: want up "
        "to 64 characters of [A-Za-z0-9._-], as in eu-west-1"
    )


def _ca_certs(url: StoreUrl, endpoint: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the path of a file of authorities, if one is named and TLS is spoken."""
    named = url.options.get("ca_certs")
    if endpoint is None or not _is_plain(endpoint):
        return environment.get("AWS_CA_BUNDLE") or None if named is None else named
    if named is not None:  # whoever named it takes the data to be encrypted
        raise UrlError(
            f"store URL {url.shown!r:.200}: option ca_certs: endpoint {endpoint!r:.200} is not "
            "encrypted: want https://"
        )
    return None


def _virtual(url: StoreUrl, endpoint: str | None) -> bool:
    """Return whether the bucket goes into the host name; by default on AWS alone."""
    style = url.options.get("style")
    if style is None:
        # A certificate for *.s3.amazonaws.com does not hold for a bucket with a dot in its name.
        return endpoint is None and "." not in url.authority
    if style not in ("path", "virtual"):
        raise UrlError(f"store URL {url.shown!r:.200}: option style: want path or virtual")
    if style == "virtual" and endpoint is not None:
        host = urlsplit(endpoint).hostname or ""
        if _is_address(host) or not is_host(f"{url.authority}.{host}"):
            raise UrlError(
                f"store URL {url.shown!r:.200}: option style=virtual: no host can be called "
                f"{url.authority}.{host:.200}: want style=path, or the server's name in endpoint="
            )
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
