"""``partition/1``: the partition number of a subject, one at a time and in a column."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pyarrow as pa

from headrace.subjects import check_filter, check_subject, partition, partition_array
from tests.conformance.registry import Adapter

# Enough rows that a column is hashed by passes over its bytes.
_COLUMN_ROWS = 100


class PartitionCase(msgspec.Struct, frozen=True):
    subject: str
    filter: str
    wildcards: list[int]
    partitions: Annotated[int, msgspec.Meta(ge=1)]
    partition: Annotated[int, msgspec.Meta(ge=0)]


def label(case: PartitionCase) -> str:
    return f"{case.subject} by {case.filter} {case.wildcards} of {case.partitions}"


def check(case: PartitionCase) -> list[str]:
    check_subject(case.subject)
    check_filter(case.filter)
    wanted = case.partition
    faults = []
    one = partition(case.subject, case.filter, case.wildcards, case.partitions)
    if one != wanted:
        faults.append(f"expected partition {wanted}, got {one}")
    column = pa.array([case.subject] * _COLUMN_ROWS)
    rows = partition_array(column, case.filter, case.wildcards, case.partitions)
    if rows.tolist() != [wanted] * _COLUMN_ROWS:
        faults.append(f"expected partition {wanted} in every row, got {sorted(set(rows.tolist()))}")
    return faults


ADAPTER = Adapter(format="partition/1", case=PartitionCase, label=label, check=check)
