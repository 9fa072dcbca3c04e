"""Errors of Redis as a store's errors: what each means, whether it may pass. It sends nothing.

A server's own text is never passed on whole: that of an unknown command, for one, quotes the first
bytes of the arguments, which are a value's.
"""

import re
import ssl

import redis.exceptions as theirs

from unikv.backends.redis_url import RedisPlace
from unikv.errors import StoreError


class Refusal(Exception):  # noqa: N818 - a reply that is passed around, not raised
    """An error reply of the server: its code, such as ``OOM``, and the text behind it."""

    def __init__(self, reply: str) -> None:
        self.code, _, self.text = reply.partition(" ")
        super().__init__(self.code)


class OutOfStep(ConnectionError):  # noqa: N818 - see above
    """A reply that cannot belong to what was asked: the connection can be trusted no more."""


_MEANINGS = {  # code: what to tell the user, and whether it may be over a moment later
    "ASK": ("the server is a node of a cluster: add cluster=1 to the URL", False),
    "BUSY": ("the server is busy with a script", True),
    "CLUSTERDOWN": ("the cluster is down, or the slot of the key has no node", True),
    "LOADING": ("the server is still loading its data", True),
    "MASTERDOWN": ("the replica has lost its master", True),
    "MISCONF": ("the server takes no writes since it cannot save to its disk", False),
    "MOVED": ("the server is a node of a cluster: add cluster=1 to the URL", False),
    "NOAUTH": ("the server wants a password: want user:password@ in the URL", False),
    "NOPERM": ("the user has no right to the command or to the key (ACL)", False),
    "NOREPLICAS": ("the server has too few replicas to take writes", True),
    # Not passing: it is over when somebody deletes or the policy changes, and reads still work.
    "OOM": ("the server is full: maxmemory is reached and its policy evicts nothing", False),
    "READONLY": ("the server is a replica, which takes no writes", True),
    "TRYAGAIN": ("the slot of the key is moving to another node", True),
    "WRONGPASS": ("the server refused user name and password", False),
    "WRONGTYPE": ("the key holds no string", False),
}
_PASSING = {"max number of clients reached"}
_CODE = re.compile(r"[A-Z]{1,20}\Z")
_SAFE = re.compile(r"[ !#-&(-_a-~]{0,80}")  # printable, up to the first quotation mark of any kind


def refused(refusal: Refusal, doing: str) -> StoreError:
    """Return the error for a refused command; ``doing`` names it and the server."""
    meaning, passing = _MEANINGS.get(refusal.code, ("", False))
    if not meaning:
        found = _SAFE.match(refusal.text)
        meaning = (found[0] if found else "").strip().rstrip(",") or "refused"
        passing = refusal.text in _PASSING
    code = refusal.code if _CODE.match(refusal.code) else "no code"
    return failure(f"{doing}: {meaning} ({code})", retryable=passing)


def reason(reply: object, command: str) -> StoreError:
    """Return the error for a reply that is not what the command should give."""
    if isinstance(reply, StoreError):
        return reply
    if isinstance(reply, Refusal):
        return refused(reply, command)
    return failure(f"{command}: an answer of type {type(reply).__name__} means nothing here")


def lost(error: Exception, node: object, timeout: float) -> StoreError:
    """Return the error for a connection that broke off, or is not in step."""
    if isinstance(error, TimeoutError):
        why = f"no answer within {timeout:g} s"
    elif isinstance(error, OutOfStep):
        why = f"connection closed: {error}"
    else:
        why = f"connection lost: {getattr(error, 'strerror', None) or error}"
    return failure(f"{node}: {why}", retryable=True)


def not_connected(error: Exception, node: object, place: RedisPlace) -> StoreError:
    """Return the error for a connection that could not be made."""
    speaks = " (does it speak TLS?)" if place.tls else ""  # a plain server waits for more
    cause = error.__context__ if isinstance(error, theirs.ConnectionError) else error
    if isinstance(error, theirs.TimeoutError | TimeoutError):
        why = f"no answer within {place.connect_timeout:g} s{speaks}"
        return failure(f"connect to {node}: {why}", retryable=True)
    if isinstance(error, theirs.AuthenticationError | theirs.AuthenticationWrongNumberOfArgsError):
        return failure(
            f"connect to {node}: the server wants another user name or password "
            "(user:password@ in the URL, percent-encoded)"
        )
    if isinstance(error, theirs.BusyLoadingError):
        return refused(Refusal("LOADING"), f"connect to {node}")
    if isinstance(error, theirs.ResponseError):
        return _not_let_in(error, f"connect to {node}", place)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return failure(
            f"connect to {node}: its certificate is not trusted: {cause.verify_message} "
            "(ca_certs= in the URL names the authority)"
        )
    why = getattr(cause, "strerror", None) or f"the server closed the connection{speaks}"
    return failure(f"connect to {node}: {why}", retryable=True)


def _not_let_in(error: Exception, doing: str, place: RedisPlace) -> StoreError:
    """Return the error for a server that refused what came with connecting."""
    if "DB index" in str(error):
        return failure(
            f"{doing}: there is no database {place.db}: want 0 to databases - 1 of the server's "
            "configuration (15 by default)"
        )
    return refused(Refusal(f"ERR {error}"), doing)


def failure(text: str, *, retryable: bool = False) -> StoreError:
    """Return an error that says whether it may pass."""
    error = StoreError(text)
    error.retryable = retryable
    return error
