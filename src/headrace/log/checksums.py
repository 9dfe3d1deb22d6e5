"""Checksums of blobs in the catalog: of the bytes and of the layout that says how to read them."""

from __future__ import annotations

from zlib_ng.zlib_ng import crc32


def of_blob(blob: bytes | memoryview, layout: int) -> int:
    """CRC-32 of a blob, begun with its layout; never begun with 0, as older ones are."""
    return crc32(blob, layout + 1)


def fits(checksum: int, blob: bytes | memoryview, layout: int) -> bool:
    """Whether a blob and its layout are what was stored; older checksums cover the blob alone."""
    return of_blob(blob, layout) == checksum or crc32(blob) == checksum
