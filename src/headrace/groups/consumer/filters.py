"""Which events pass the filters of a unit, for whole columns of subjects.

Filters that differ in nothing but a first token without wildcard, as those of the partitions that
a member of a static group is given, take one pass however many they are.
"""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from headrace.log.arrays import texts
from headrace.subjects import match_array, parse_filter

FEW = 2
"""Up to this many filters are quicker one by one."""


class UnitFilter:
    """The filters of a unit; an event passes when one of them lets it."""

    def __init__(self, filters: str | tuple[str, ...]) -> None:
        given = (filters,) if isinstance(filters, str) else filters
        self._filters = tuple(parse_filter(one) for one in given)
        self._heads: pa.Array | None = None
        heads = [one.partition(".")[0] for one in self._filters]
        tails = {one.partition(".")[2] for one in self._filters}
        if len(heads) > FEW and len(tails) == 1 and "" not in tails and not {"*", ">"} & {*heads}:
            self._heads = texts(heads, pa.string())
            self._filters = (f"*.{tails.pop()}",)

    def mask(self, subjects: pa.Array) -> pa.Array:
        """True for each subject that passes."""
        first, *others = (match_array(one, subjects) for one in self._filters)
        passed = reduce(pc.or_, others, first)
        if self._heads is None:
            return passed
        tokens = pc.list_element(pc.split_pattern(subjects, ".", max_splits=1), 0)
        return pc.and_(passed, pc.is_in(tokens, self._heads))
