"""Which rows of a column of subjects pass a filter.

Theory of operation.  A column is matched by the cheapest test that decides: everything, equality, a
prefix, and only then the tokens, found through the dots in the column's bytes (``columns.Tokens``).
Regular expressions were tried for that last case and were slower, mostly for the time it takes to
build one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace import compiled
from headrace.subjects.columns import (
    NARROW,
    Block,
    Mask,
    StringColumn,
    Tokens,
    blocks,
    mask_array,
    text_array,
    text_scalar,
)


def match_array(filter: str, subjects: StringColumn) -> pa.BooleanArray:
    """Which rows of a column of subjects pass a filter; a null row never does."""
    array = text_array(subjects, "subjects")
    if filter == ">":
        return array.is_valid()
    import pyarrow.compute as pc

    tokens = filter.split(".")
    wildcards = tokens.count("*")
    if wildcards == 0 and tokens[-1] != ">":
        passed = pc.equal(array, text_scalar(filter, array.type))
    elif wildcards == 0:
        passed = pc.starts_with(array, filter[:-1])
    else:
        mask = np.empty(len(array), np.bool_)
        for low, block in blocks(array):
            mask[low : low + len(block.starts)] = match_block(tokens, block, Tokens(block))
        passed = mask_array(mask)
        return pc.and_(passed, array.is_valid()) if array.null_count else passed
    return passed.fill_null(False) if array.null_count else passed


def surely_match(filter: str, subjects: StringColumn) -> bool:
    """A quick test whether all rows of a column pass a filter, for filters of a plain prefix.

    False means "perhaps not": ask :func:`match_array`.
    """
    if filter == ">":
        return not subjects.null_count
    if not filter.endswith(".>") or "*" in filter:
        return False
    array, prefix = text_array(subjects, "subjects"), filter[:-1]
    kernels = compiled.kernels
    if kernels is not None and array.type.id in NARROW and not array.null_count:
        return bool(kernels.begin_with(array, prefix.encode()))
    import pyarrow.compute as pc

    return bool(pc.starts_with(array, prefix).true_count == len(array))


def match_block(wanted: list[str], block: Block, tokens: Tokens) -> Mask:
    """Which rows of a block pass the filter with these tokens."""
    fixed = wanted[:-1] if wanted[-1] == ">" else wanted
    if wanted[-1] == ">":
        passed = tokens.counts > len(fixed)
    else:
        passed = tokens.counts == len(fixed)
    literals = [(number, token.encode()) for number, token in enumerate(fixed) if token != "*"]
    for number, literal in literals:
        starts, lengths = tokens.bounds(number)
        passed &= lengths == len(literal)
        for place, byte in enumerate(literal):
            # A sliding window saves adding ``place`` to every start.  Rows too short for it have
            # failed already; clipping only keeps their lookups inside the block.
            window = block.data[place:]
            if not len(window):
                break
            passed &= window.take(starts, mode="clip") == byte
    return passed
