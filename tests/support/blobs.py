"""Blobs in memory, as evaluators ask for them."""

from __future__ import annotations

from state.errors import BlobMissing
from state.model import digest_of


class Blobs(dict[str, bytes]):
    """Bytes by their digest."""

    def put(self, data: bytes) -> str:
        self[digest_of(data)] = data
        return digest_of(data)

    def get_blob(self, digest: str) -> bytes:
        if digest not in self:
            raise BlobMissing(digest)
        return self[digest]
