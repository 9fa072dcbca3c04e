"""Fsspec HTTP: answers of HTTP servers, of which no more is read than was asked for. It asks none.

fsspec reads all that comes before it looks at it, and does not notice a server that ignores ranges.
"""

import re
from typing import Any

from aiohttp import ClientResponse

from unikv.errors import StoreError

_PAGE_BYTES = 64 << 20
"""What an answer may have that is no range: the page by which a server lists a folder."""

_REFUSAL_BYTES = 64 << 10
"""How much is read of an answer that fails, so that its connection can be used again."""

_RANGE = re.compile(r"bytes=(\d+)-(\d+)\Z")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/")


class BoundedResponse(ClientResponse):
    """An answer that ends where too much of it came."""

    async def read(self) -> bytes:
        """Return the body; of an answer that fails, nothing.

        Raises:
            StoreError: it is larger than was asked for, or another range.
        """
        if self._body is None:
            try:
                self._body = await self._refusal() if self.status >= 400 else await self._bounded()
            except BaseException:
                self.close()
                raise
        return self._body

    async def _bounded(self) -> bytes:
        most = self._most()
        parts, size = [], 0
        if (self.content_length or 0) <= most:
            async for part in self.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > most:
                    break
            else:
                return b"".join(parts)
        raise StoreError(f"want at most {most} bytes, the server sends more")

    async def _refusal(self) -> bytes:
        left = _REFUSAL_BYTES
        async for part in self.content.iter_any():
            left -= len(part)
            if left < 0:
                self.close()
                break
        return b""

    def _most(self) -> int:
        """Return how many bytes may come."""
        asked = _RANGE.match(self.request_info.headers.get("Range", ""))
        if asked is None:
            return _PAGE_BYTES
        start, last = int(asked[1]), int(asked[2])
        told = _CONTENT_RANGE.match(self.headers.get("Content-Range", ""))
        begins = start if self.status == 206 else 0  # if nothing else is told
        if (int(told[1]) if told else begins) != start:
            raise StoreError(f"want bytes from {start} on, the server sends others")
        return last + 1 - start


def bound_answers(fs: Any) -> None:
    """Make a file system of HTTP read no more than it asked for. It must not have asked yet."""
    fs.client_kwargs = {**fs.client_kwargs, "response_class": BoundedResponse}
