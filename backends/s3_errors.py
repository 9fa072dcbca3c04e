"""S3 faults: from what obstore raises to what happened, and whether it may pass. No requests.

obstore tells its errors apart by text only, and the text quotes what the server sent. So nothing of
it goes on but a status, the code that S3 gives beside it, and the first line of what obstore itself
found wrong.
"""

import re
from enum import Enum, auto

from unikv.backends.s3_url import S3Place
from unikv.errors import StoreError


class Fault(Enum):
    """What became of a request that failed."""

    NO_KEY = auto()
    NO_BUCKET = auto()
    DENIED = auto()
    EXISTS = auto()  # a put that was to make the object found one
    RANGE = auto()  # the object ends before the range begins
    SILENT = auto()  # no answer in time
    OTHER = auto()


class S3Error(StoreError):
    """A request that failed, with its `Fault` and the status of the answer, if there was one."""

    def __init__(
        self, fault: Fault, message: str, *, retryable: bool = False, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.retryable = retryable
        self.status = status


def is_silence(error: Exception) -> bool:
    """Return whether a request failed because nothing answered in time."""
    return isinstance(error, S3Error) and error.fault is Fault.SILENT


_READ = 8192  # characters of an error's text that are looked at: a server may send any amount
_STATUS = re.compile(r"status code: (\d{3})( [A-Za-z -]{1,40})?")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.-]{1,64})</Code>")
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_PASSING_CODE = frozenset(
    {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
)
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity"})
_KINDS = re.compile(r"kind: (Timeout|Connect|Interrupted|Request|Decode)\b")
_URL = re.compile(r"Error performing [A-Z]+ (\S+)")
_CREDENTIALS = re.compile(r"/latest/(api/token|meta-data)|://sts\.|://169\.254\.")
_PROVIDER = "path External AWS credential provider"
_ELSEWHERE = ("error following redirect", "redirect without LOCATION")
_BAD_RANGE = ("non-partial response", "Content-Range", "CONTENT_RANGE", "Requested ")


def explain_error(error: BaseException, place: S3Place) -> S3Error:
    """Return what an exception of obstore means. It quotes no credentials and no body."""
    full = str(error)
    text, end = full[:_READ], full[-_READ:]
    status = _STATUS.search(text)
    if _for_credentials(text, place):
        return S3Error(
            Fault.OTHER,
            f"no credentials for {place.server}: whoever was to give them refused or did not "
            "answer; want AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or anonymous=1",
            retryable=status is None or int(status[1]) in _PASSING_STATUS,
        )
    if status is not None:
        return _refused(int(status[1]), status[2] or "", text, place)
    if any(word in text for word in _ELSEWHERE):
        return S3Error(Fault.OTHER, f"{place.server} sends requests elsewhere: {_region(place)}")
    kind = _KINDS.search(end)
    if kind is not None:
        return _broken(kind[1], place)
    if type(error).__name__ == "AlreadyExistsError":
        return S3Error(Fault.EXISTS, "there is an object already")
    first = "".join(c for c in text.partition("\n")[0] if c.isprintable())
    what = "serves byte ranges wrongly" if any(w in first for w in _BAD_RANGE) else "answers oddly"
    return S3Error(Fault.OTHER, f"{place.server} {what}: {first:.200}")


def _for_credentials(text: str, place: S3Place) -> bool:
    """Return whether it was not the bucket that was asked, but who gives credentials for it."""
    url = _URL.search(text)
    if url is None:
        return _PROVIDER in text
    server = place.bucket_endpoint
    ours = f"{server}/" if place.virtual else f"{server}/{place.bucket}"
    return not (server and url[1].startswith(ours)) and bool(_CREDENTIALS.search(url[1]))


def _refused(status: int, reason: str, text: str, place: S3Place) -> S3Error:
    """Return the error for an answer whose status is no success."""
    code = _CODE.search(text)
    name = code[1] if code else ""
    said = f"{place.server} answered {status} {name or reason.strip()}".rstrip()
    passing = status in _PASSING_STATUS or name in _PASSING_CODE
    fault, why = Fault.OTHER, ""
    if name == "NoSuchBucket":
        fault, why = Fault.NO_BUCKET, f"there is no bucket {place.bucket!r}"
    elif status == 404:
        fault, why = Fault.NO_KEY, "there is no such object"
    elif status == 507 or name in _FULL:
        why, passing = "the store is full", False
    elif status in (401, 403):
        # S3 says so of a missing key, too, to those who may not list the bucket.
        fault, why = Fault.DENIED, "the credentials are wrong, or do not allow this, or ListBucket"
    elif status in (304, 409, 412):
        # 409: a delete overtook the put.
        fault, why, passing = Fault.EXISTS, "there is an object already", status == 409
    elif status == 416:
        fault, why = Fault.RANGE, "the object ends before the range begins"
    elif status in (301, 307, 308) or name == "AuthorizationHeaderMalformed":
        why = _region(place)
    return S3Error(fault, f"{why}: {said}" if why else said, retryable=passing, status=status)


def _region(place: S3Place) -> str:
    return f"want the bucket's own region= and endpoint= (region now {place.region or 'unnamed'})"


def _broken(kind: str, place: S3Place) -> S3Error:
    """Return the error for a connection that did not bring an answer, or not all of it."""
    if kind == "Timeout":
        return S3Error(
            Fault.SILENT, f"{place.server} did not answer in {place.timeout_s:g} s", retryable=True
        )
    if kind == "Connect":
        return S3Error(Fault.OTHER, f"cannot connect to {place.server}", retryable=True)
    return S3Error(Fault.OTHER, f"{place.server} broke off the connection", retryable=True)
