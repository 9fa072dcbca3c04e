"""S3 faults: from what obstore raises to what happened, and whether it may pass. No requests.

obstore tells its errors apart by text only, and the text quotes what the server sent. So nothing of
it goes on but a status, the code that S3 gives beside it, and the first line of what obstore itself
found wrong.
"""

import re
from enum import Enum, auto
from errno import EHOSTUNREACH, ENETUNREACH
from socket import gaierror

from unikv.backends.s3_keyring import NoKeysError
from unikv.backends.s3_tls import explain_tls
from unikv.backends.s3_url import S3Place
from unikv.backends.s3_web import Answer
from unikv.errors import StoreError


class Fault(Enum):
    """What became of a request that failed."""

    NO_KEY = auto()
    NO_BUCKET = auto()
    DENIED = auto()
    EXISTS = auto()  # a put that was to make the object found one
    RANGE = auto()  # the object ends before the range begins
    SILENT = auto()  # no answer in time
    TLS = auto()  # there can be no trusted connection
    NO_KEYS = auto()  # nobody gave credentials
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

    def of_another(self, place: S3Place) -> "S3Error":
        """Return the error of a request that was not made, since this one failed."""
        if self.fault is not Fault.SILENT:
            return S3Error(self.fault, str(self), retryable=self.retryable)
        untried = f"not tried: {place.server} left another request of this call unanswered"
        return S3Error(Fault.SILENT, untried, retryable=True)


_LASTING = (Fault.SILENT, Fault.TLS, Fault.NO_KEYS)


def ends_call(error: Exception) -> bool:
    """Return whether no other request of the call would fare better, or soon."""
    return isinstance(error, S3Error) and error.fault in _LASTING


def explain_no_keys(error: NoKeysError, place: S3Place) -> S3Error:
    """Return what it means that there are no credentials."""
    return S3Error(
        Fault.NO_KEYS,
        f"no credentials for {place.server}: {error}; want AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, a profile, or anonymous=1",
        retryable=error.retryable,
    )


NOWHERE = "127.117.110.105:0"
"""Where nobody can listen: requests that would leave the endpoint's host are sent there."""

_NO_WAY = (EHOSTUNREACH, ENETUNREACH)
_READ = 8192  # characters of an error's text that are looked at: a server may send any amount
_STATUS = re.compile(r"status code: (\d{3})( [A-Za-z -]{1,40})?")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.-]{1,64})</Code>")
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_PASSING_CODE = frozenset(
    {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
)
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity"})
_KINDS = re.compile(r"kind: (Timeout|Connect|Interrupted|Request|Decode)\b")
_PROVIDER = "path External AWS credential provider"
_ELSEWHERE = (NOWHERE, "error following redirect", "redirect without LOCATION")
_NOT_CONNECTED = re.compile(r"\bConnect,\s+TimedOut\b")
_NO_HANDSHAKE = "tls handshake eof"
_UNANSWERED = ": error sending request\n"
_NO_TLS = "want http:// and allow_http=1 if it does not speak TLS"
_WANT_TLS = "want https:// if it speaks TLS"
_BAD_RANGE = ("non-partial response", "Content-Range", "CONTENT_RANGE", "Requested ")


def explain_error(error: BaseException, place: S3Place) -> S3Error:
    """Return what an exception of obstore means. It quotes no credentials and no body."""
    if isinstance(error, OSError) and error.errno is not None:  # of this machine
        why = f"cannot ask {place.server}: {error.strerror}"
        return S3Error(Fault.OTHER, why, retryable=True)
    full = str(error)
    text, end = full[:_READ], full[-_READ:]
    status = _STATUS.search(text)
    insecure = explain_tls(text, place)
    if insecure is not None:
        return S3Error(Fault.TLS, insecure)
    if status is not None:
        return _refused(int(status[1]), status[2] or "", text, place)
    if any(word in text for word in _ELSEWHERE):
        return S3Error(Fault.OTHER, f"{place.server} sends requests elsewhere: {_region(place)}")
    kind = _KINDS.search(end)
    if kind is not None:
        return _broken(kind[1], text, place)
    return _odd(error, text, place)


def explain_answer(answer: Answer, place: S3Place) -> S3Error:
    """Return what an answer means that is no success, and that obstore has not seen."""
    text = answer.body[:_READ].decode("utf-8", "replace")
    reason = "".join(c for c in answer.reason[:40] if c.isprintable())
    return _refused(answer.status, reason, text, place)


def explain_lost(error: OSError, place: S3Place) -> S3Error:
    """Return what it means that no answer came to a request that obstore did not make."""
    if isinstance(error, TimeoutError):
        return _broken("Timeout", "", place)
    if isinstance(error, ConnectionRefusedError | gaierror) or error.errno in _NO_WAY:
        return _broken("Connect", "", place)
    why = error.strerror or str(error)
    return S3Error(Fault.OTHER, f"{place.server} gave no answer: {why:.200}", retryable=True)


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
    elif status in (301, 302, 303, 307, 308) or name == "AuthorizationHeaderMalformed":
        why = _region(place)
    elif status == 400 and not name and not place.secure:
        why = _WANT_TLS
    return S3Error(fault, f"{why}: {said}" if why else said, retryable=passing, status=status)


def _region(place: S3Place) -> str:
    return f"want the bucket's own region= and endpoint= (region now {place.region or 'unnamed'})"


def _broken(kind: str, text: str, place: S3Place) -> S3Error:
    """Return the error for a connection that did not bring an answer, or not all of it."""
    if kind == "Timeout":
        waited = f"{place.server} did not answer in {place.timeout_s:g} s"
        if _NOT_CONNECTED.search(text):
            waited = f"no connection to {place.server} in {place.connect_s:g} s"
            waited += f": {_NO_TLS}" if place.secure else ""
        return S3Error(Fault.SILENT, waited, retryable=True)
    if kind == "Connect":
        why = f": {_NO_TLS}" if _NO_HANDSHAKE in text else ""
        return S3Error(Fault.OTHER, f"cannot connect to {place.server}{why}", retryable=True)
    why = f": {_WANT_TLS}" if _UNANSWERED in text and not place.secure else ""
    return S3Error(Fault.OTHER, f"{place.server} broke off the connection{why}", retryable=True)


def _odd(error: BaseException, text: str, place: S3Place) -> S3Error:
    """Return the error for an answer that obstore did not like."""
    if type(error).__name__ == "AlreadyExistsError":
        return S3Error(Fault.EXISTS, "there is an object already")
    if _PROVIDER in text:
        return explain_no_keys(NoKeysError("they ran out meanwhile", retryable=True), place)
    first = "".join(c for c in text.partition("\n")[0] if c.isprintable())
    what = "serves byte ranges wrongly" if any(w in first for w in _BAD_RANGE) else "answers oddly"
    return S3Error(Fault.OTHER, f"{place.server} {what}: {first:.200}")
