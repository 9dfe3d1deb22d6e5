"""Filters of units: many at once pass what each would pass alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.groups.consumer.filters import UnitFilter
from headrace.subjects import matches

SUBJECTS = [
    "0", "0.a", "1.a", "2.a.b", "10.a", "3.b", "12.a.b.c", "x.a", "a.0", "1.b.c", "22.a", "2",
]  # fmt: skip


@pytest.mark.parametrize(
    "filters",
    [
        ("1.a",),
        ("0.>", "1.>"),
        tuple(f"{n}.>" for n in (0, 1, 2, 12)),
        tuple(f"{n}.a.*" for n in range(13)),
        ("0.>", "1.>", "2.a.*", "*.a"),
        (">", "1.>", "2.>"),
        ("*.>", "1.>", "2.>"),
        ("0", "1", "2", "x"),
    ],
)
def test_a_mask_is_that_of_its_filters_one_by_one(filters: tuple[str, ...]) -> None:
    mask = UnitFilter(filters).mask(pa.array(SUBJECTS)).to_pylist()
    assert mask == [any(matches(one, subject) for one in filters) for subject in SUBJECTS]


def test_a_single_filter_may_be_text() -> None:
    assert UnitFilter("1.*").mask(pa.array(["1.a", "1", "2.a"])).to_pylist() == [True, False, False]
