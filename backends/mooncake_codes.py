"""Codes: what each of Mooncake's numbers means, and whether it may pass. It calls nothing."""

from typing import NamedTuple

from unikv.errors import StoreError


class Code(NamedTuple):
    """One number that the library answers with in place of a size or of zero."""

    name: str
    meaning: str
    passes: bool  # whether the same call may succeed a moment later


NO_SPACE = -200
WRITE_FAIL = -500
INVALID = -600
OTHER_CLIENT = -601
NO_MEMORY_REPLICA = -702
NOT_READY = -703
NOT_FOUND = -704
EXISTS = -705
LEASED = -706
LEASE_EXPIRED = -707
TRANSFER_FAIL = -800
ABSENT = (NOT_FOUND, NOT_READY)
"""A reader's miss: there is no such object, or its writer has not ended."""

CODES = {
    -1: Code("INTERNAL_ERROR", "the library failed", passes=False),
    -10: Code("BUFFER_OVERFLOW", "a buffer is too small", passes=False),
    -100: Code("SHARD_INDEX_OUT_OF_RANGE", "the master failed", passes=False),
    -101: Code("SEGMENT_NOT_FOUND", "nobody lends memory to the master", passes=True),
    -102: Code("SEGMENT_ALREADY_EXISTS", "the segment is mounted already", passes=False),
    -103: Code("CLIENT_NOT_FOUND", "the master does not know this client (yet)", passes=True),
    NO_SPACE: Code(
        "NO_AVAILABLE_HANDLE",
        "no room: the store is full and eviction lags, or the object is larger than a segment, "
        "or no client lends memory: segment=",
        passes=True,
    ),
    -300: Code("INVALID_VERSION", "client and master are of different versions", passes=False),
    -400: Code("INVALID_KEY", "the master refuses the key", passes=False),
    WRITE_FAIL: Code("WRITE_FAIL", "the object could not be written", passes=True),
    INVALID: Code("INVALID_PARAMS", "the library refuses the call", passes=False),
    OTHER_CLIENT: Code("ILLEGAL_CLIENT", "another client took the key over", passes=True),
    -700: Code("INVALID_WRITE", "the object may not be written now", passes=True),
    -701: Code("INVALID_READ", "the object may not be read now", passes=True),
    NO_MEMORY_REPLICA: Code("INVALID_REPLICA", "no replica that this call can use", passes=True),
    NOT_READY: Code("REPLICA_IS_NOT_READY", "a writer has begun it and not ended", passes=True),
    NOT_FOUND: Code("OBJECT_NOT_FOUND", "there is no such object", passes=False),
    EXISTS: Code("OBJECT_ALREADY_EXISTS", "it exists, or another writes it now", passes=True),
    LEASED: Code(
        "OBJECT_HAS_LEASE",
        "it was read or asked for lately: the master's lease on it (10 s by default) must end",
        passes=True,
    ),
    LEASE_EXPIRED: Code("LEASE_EXPIRED", "the read outlived its lease", passes=True),
    -708: Code("OBJECT_HAS_REPLICATION_TASK", "it is being copied or moved", passes=True),
    -709: Code("OBJECT_NO_REPLICATION_TASK", "it is not being copied", passes=False),
    -710: Code("REPLICA_NOT_FOUND", "the replica is not there", passes=True),
    -711: Code("REPLICA_ALREADY_EXISTS", "the replica is there already", passes=False),
    -712: Code("REPLICA_IS_GONE", "the replica went away", passes=True),
    -713: Code("REPLICA_NOT_IN_LOCAL_MEMORY", "the replica is on another node", passes=False),
    -714: Code("OBJECT_REPLICA_BUSY", "a replica of it is in use", passes=True),
    TRANSFER_FAIL: Code("TRANSFER_FAIL", "the owner of the memory did not answer", passes=True),
    -801: Code("CHECKSUM_MISMATCH", "its bytes are not those that were stored", passes=False),
    -900: Code("RPC_FAIL", "the master cannot be reached", passes=True),
    -901: Code("RPC_TIMEOUT", "the master did not answer in time", passes=True),
    -1010: Code("UNAVAILABLE_IN_CURRENT_STATUS", "the master is no leader now", passes=True),
    -1011: Code("UNAVAILABLE_IN_CURRENT_MODE", "this kind of client cannot do it", passes=False),
    -1012: Code("NOT_SUPPORTED", "the library cannot do it", passes=False),
    -1600: Code("DFS_NETWORK_TIMEOUT", "the shared file system did not answer", passes=True),
    -1601: Code("DFS_SERVICE_UNAVAILABLE", "the shared file system is away", passes=True),
    -1700: Code("TENANT_QUOTA_EXCEEDED", "the tenant's quota is used up", passes=True),
    -1701: Code("TENANT_NOT_REGISTERED", "the tenant has no quota", passes=False),
    -1702: Code("TENANT_NOT_EMPTY", "the tenant still owns objects", passes=False),
}

# What no single number of matters to a store: the range says whose failure it is.
_RANGES = (
    (range(-1099, -999), Code("HA", "the master's high availability failed", passes=True)),
    (range(-1199, -1099), Code("FILE", "the owner's disk failed", passes=True)),
    (range(-1299, -1199), Code("BUCKET", "the owner's disk store failed", passes=False)),
    (range(-1399, -1299), Code("OFFLOAD", "moving objects to disk failed", passes=False)),
    (range(-1499, -1399), Code("TASK", "a task of the master failed", passes=True)),
    (range(-1599, -1499), Code("SERIALIZE", "the master could not read a record", passes=False)),
    (range(-1699, -1599), Code("DFS", "the shared file system failed", passes=False)),
)


def meaning(code: int) -> Code:
    """Return what a number means; one that is not known does not pass."""
    if code in CODES:
        return CODES[code]
    for numbers, found in _RANGES:
        if code in numbers:
            return found
    return Code("unknown", "a newer library than this package knows", passes=False)


def refusal(code: int) -> StoreError:
    """Return the error that a number stands for."""
    found = meaning(code)
    error = StoreError(f"Mooncake {found.name} ({code}): {found.meaning}")
    error.retryable = found.passes
    return error


def passing(text: str) -> StoreError:
    """Return an error of our own that may be over a moment later."""
    error = StoreError(text)
    error.retryable = True
    return error
