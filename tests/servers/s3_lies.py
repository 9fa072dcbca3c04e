"""Lies: the ways in which a server answers a ranged GET wrongly. Each takes the bytes it has."""

import time

from tests.servers.s3_hostile import MIB, Handler


def whole_object(asked: Handler) -> None:
    """Ignore the range: status 200 and all of it."""
    asked.send(200, _data(asked))


def whole_but_fitting(asked: Handler) -> None:
    """Ignore the range, with as many bytes as were asked for, from the start of the object."""
    start, stop = asked.range(1 << 40)
    asked.send(200, _data(asked)[: stop - start])


def no_content_range(asked: Handler) -> None:
    """Say 206 but not which range it is."""
    start, stop = asked.range(1 << 40)
    asked.answer(206, {"Content-Length": str(stop - start)}, _data(asked)[start:stop])


def another_range(asked: Handler) -> None:
    """Send a range of the right length from another place, and say so."""
    start, stop = asked.range(1 << 40)
    asked.partial(_data(asked)[: stop - start], 0, stop - start, len(_data(asked)))


def a_longer_range(asked: Handler) -> None:
    """Send more than was asked for, and say so."""
    start, stop = asked.range(1 << 40)
    asked.partial(_data(asked)[start : stop + 10], start, stop + 10, len(_data(asked)))


def a_shorter_range(asked: Handler) -> None:
    """Send less than was asked for, and say so, though the object goes on."""
    start, stop = asked.range(1 << 40)
    asked.partial(_data(asked)[start : stop - 1], start, stop - 1, len(_data(asked)))


def a_shorter_object(asked: Handler) -> None:
    """Send less than was asked for, as if the object ended there."""
    start, stop = asked.range(1 << 40)
    asked.partial(_data(asked)[start : stop - 1], start, stop - 1, stop - 1)


def unknown_size(asked: Handler) -> None:
    """Send the range, but of an object whose size it will not tell."""
    start, stop = asked.range(1 << 40)
    says = {"Content-Range": f"bytes {start}-{stop - 1}/*", "Content-Length": str(stop - start)}
    asked.answer(206, says, _data(asked)[start:stop])


def a_longer_body(asked: Handler) -> None:
    """Say the right range and send more bytes."""
    start, stop = asked.range(1 << 40)
    asked.partial(_data(asked)[start : stop + 10], start, stop, len(_data(asked)))


def a_shorter_body(asked: Handler) -> None:
    """Say the right range and send fewer bytes, with a length that fits the fewer."""
    start, stop = asked.range(1 << 40)
    asked.partial(_data(asked)[start : stop - 1], start, stop, len(_data(asked)))


def a_huge_body(asked: Handler) -> None:
    """Say the right range and send 8 MiB behind it."""
    start, stop = asked.range(1 << 40)
    asked.partial(_data(asked)[start:stop] + bytes(8 * MIB), start, stop, len(_data(asked)))


def a_broken_body(asked: Handler) -> None:
    """Close the connection in the middle of the body."""
    start, stop = asked.range(1 << 40)
    says = {
        "Content-Range": f"bytes {start}-{stop - 1}/{len(_data(asked))}",
        "Content-Length": str(stop - start),
    }
    asked.answer(206, says, _data(asked)[start : stop - 1])


def a_chunked_body(asked: Handler) -> None:
    """Send fewer bytes in chunks, so that no length is told."""
    start, stop = asked.range(1 << 40)
    says = {
        "Content-Range": f"bytes {start}-{stop - 1}/{len(_data(asked))}",
        "Transfer-Encoding": "chunked",
    }
    asked.answer(206, says, b"3\r\nabc\r\n0\r\n\r\n")


def a_dripping_body(asked: Handler) -> None:
    """Send the right bytes, one every 300 ms."""
    start, stop = asked.range(1 << 40)
    data = _data(asked)
    says = {
        "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}",
        "Content-Length": str(stop - start),
    }
    asked.answer(206, says)
    for at in range(start, stop):
        asked.wfile.write(data[at : at + 1])
        time.sleep(0.3)


def an_error_in_success(asked: Handler) -> None:
    """Say 200 and send an error, as S3 does of long operations."""
    asked.send(200, b"<Error><Code>InternalError</Code></Error>")


def nothing_in_success(asked: Handler) -> None:
    """Say 206 and send nothing."""
    start, stop = asked.range(1 << 40)
    asked.partial(b"", start, stop, len(_data(asked)))


def a_huge_error(asked: Handler) -> None:
    """Refuse with 8 MiB of text."""
    asked.send(500, b"<Error><Code>" + b"x" * 8 * MIB)


def no_http(asked: Handler) -> None:
    """Speak something else."""
    asked.wfile.write(b"220 smtp.example.org ESMTP\r\n\r\n")


def around_in_circles(asked: Handler) -> None:
    """Send the asker back to the same place."""
    asked.answer(307, {"Location": asked.path, "Content-Length": "0"})


def _data(asked: Handler) -> bytes:
    return asked.server.objects[str(asked.key)]


PASSING = {a_broken_body, a_dripping_body, a_huge_error, no_http}
"""Lies after which the same request may go well."""

HARMLESS = {a_longer_body, a_huge_body}
"""Lies in which the right bytes come first."""

LIES = [
    *(whole_object, whole_but_fitting, no_content_range, another_range, a_longer_range),
    *(a_shorter_range, a_shorter_object, unknown_size, a_longer_body, a_shorter_body),
    *(a_huge_body, a_broken_body, a_chunked_body, a_dripping_body, an_error_in_success),
    *(nothing_in_success, a_huge_error, no_http, around_in_circles),
]
