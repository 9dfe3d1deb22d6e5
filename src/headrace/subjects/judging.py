"""Whether the subjects of a whole column are well-formed (``rules`` says what that is).

Theory of operation.  A column is judged in two steps.  A compiled pass over its bytes accepts ASCII
subjects without any ``*`` or ``>``, which is nearly every column there is.  All others are matched
by one regular expression, and a row that fails is explained by the same function that explains a
single subject: the two never disagree.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace import compiled
from headrace.subjects.columns import NARROW, Block, blocks, mask_of, text_array
from headrace.subjects.rules import (
    SUBJECT_BYTES_MAX,
    SUBJECT_PLAIN_BYTES,
    SUBJECT_RE2,
    SUBJECT_TOKENS_MAX,
    subject_fault,
)


def first_invalid_subject(subjects: pa.Array | pa.ChunkedArray) -> tuple[int, str] | None:
    """Row and fault of the first subject of a column that is not well-formed, or None."""
    array = text_array(subjects, "subjects")
    if array.null_count:
        row = array.is_null().index(True).as_py()
        return first_invalid_subject(array.slice(0, row)) or (row, "it is null")
    kernels = compiled.kernels
    if (
        kernels is not None
        and array.type.id in NARROW
        and kernels.plain_subjects(array, SUBJECT_PLAIN_BYTES)
    ):
        return None
    for low, block in blocks(array):
        row = _first_fault_row(array.slice(low, len(block.starts)), block)
        if row is not None:
            fault = _scalar_fault(array[low + row])
            assert fault is not None, "a column and a single subject were judged differently"
            return low + row, fault
    return None


def _scalar_fault(scalar: pa.Scalar) -> str | None:
    try:
        return subject_fault(scalar.as_py())
    except UnicodeDecodeError:
        return "it is not valid UTF-8"


def _first_fault_row(rows: pa.Array, block: Block) -> int | None:
    well_formed = mask_of(pc.match_substring_regex(rows, SUBJECT_RE2))
    lengths = block.lengths
    faulty = ~well_formed | (lengths > SUBJECT_BYTES_MAX)
    if lengths.max() > SUBJECT_PLAIN_BYTES:
        dots = pc.count_substring(rows, ".").to_numpy(zero_copy_only=False)
        faulty |= dots >= SUBJECT_TOKENS_MAX
    return int(faulty.argmax()) if faulty.any() else None
