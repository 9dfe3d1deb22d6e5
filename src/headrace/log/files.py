"""Batches as Parquet files: zstd, a checksum on every page, and one of the footer in the catalog.

Parquet's page checksums guard the events and not the footer, in which a single wrong bit can
rename a column or change its type without anybody noticing.  So the catalog keeps a checksum of
the footer, and a file is read by the footer that was checked.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from headrace.store import Store

if TYPE_CHECKING:
    import pyarrow.parquet as pq

ROW_GROUP_ROWS = 65_536
TAIL_BYTES = 65_536
"""Read at once from a file's end: nearly always the whole footer."""
_END_BYTES = 8
"""The footer's length and Parquet's magic number."""
_REPEATED = [
    "subject",
    "key",
    "headers.list.element.key",
    "headers.list.element.value",
    "epoch.list.element",
    "origin.region",
]
"""Columns with a dictionary.  Values seldom repeat, and zstd finds it where they do: without one
for them a file takes a tenth less time, and those of JSON are a tenth smaller."""
_BOUNDED = ["timestamp", "subject", "key"]
"""Columns of which a row group tells the smallest and the largest, for reads with conditions."""


def new_path(prefix: str, stream_id: int, segment: int) -> str:
    """A file name that was never used before."""
    return f"{prefix}/{stream_id}/{segment}/{uuid.uuid4().hex}.parquet"


def encode(batch: pa.RecordBatch) -> tuple[memoryview, int]:
    """The file of a batch, and the checksum of its footer."""
    return encode_all(batch.schema, [batch])


def encode_all(schema: pa.Schema, parts: Iterable[pa.RecordBatch]) -> tuple[memoryview, int]:
    """The file of a batch given in parts, each one or more row groups; and its checksum."""
    sink = pa.BufferOutputStream()
    import pyarrow.parquet as pq  # takes long to load, and most reads meet no file

    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        write_page_checksum=True,
        version="2.6",
        use_dictionary=_REPEATED,
        write_statistics=_BOUNDED,
    ) as writer:
        for part in parts:
            writer.write_batch(part, row_group_size=ROW_GROUP_ROWS)
    data = memoryview(sink.getvalue())
    return data, crc32(data[-_footer_bytes(data) :])


def open_file(store: Store, path: str, size_bytes: int, checksum: int) -> pq.ParquetFile:
    """A reader of the file; ValueError when it is not the file that was written."""
    source = store.open(path)
    if source.size() != size_bytes:
        raise ValueError(f"it has {source.size()} bytes and should have {size_bytes}")
    tail = _tail(source, size_bytes, TAIL_BYTES)
    footer_bytes = _footer_bytes(tail)
    if footer_bytes > len(tail):
        tail = _tail(source, size_bytes, footer_bytes)
    footer = tail[-footer_bytes:]
    if crc32(footer) != checksum:
        raise ValueError("the checksum of its footer does not match")
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        source,
        metadata=pq.read_metadata(pa.BufferReader(footer)),
        page_checksum_verification=True,
        pre_buffer=False,
    )


def _tail(source: pa.NativeFile, size_bytes: int, count: int) -> bytes:
    source.seek(max(0, size_bytes - count))
    return bytes(source.read(count))


def _footer_bytes(data: bytes | memoryview) -> int:
    return int.from_bytes(data[-_END_BYTES:-4], "little") + _END_BYTES
