"""Derived names never collide and can be taken apart."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidNameError
from headrace.groups.partitioned import names as module
from headrace.groups.partitioned.names import GroupName
from headrace.subjects import check_name

plain = st.text(alphabet="ab-_", min_size=1, max_size=5)


def test_docstring_example_holds() -> None:
    assert doctest.testmod(module).failed == 0


@given(plain, plain, plain, plain)
def test_two_groups_never_share_a_derived_name(a: str, b: str, c: str, d: str) -> None:
    first, second = GroupName(a, b), GroupName(c, d)
    same = first == second
    assert (first.work_queue == second.work_queue) is same
    assert (first.pin("m") == second.pin("m")) is same
    assert first.owns(second.work_queue) is same
    assert first.owns(second.pin("m")) is same
    assert GroupName.of_key(first.key) == first


def test_hyphens_in_names_do_not_run_together() -> None:
    assert GroupName("a-b", "c").work_queue != GroupName("a", "b-c").work_queue
    assert not GroupName("s", "a").owns(GroupName("s", "a-b").pin("m"))


def test_no_person_can_choose_a_derived_name() -> None:
    with pytest.raises(InvalidNameError):
        check_name(GroupName("a", "b").work_queue)


@pytest.mark.parametrize("key", ["", "a", "a.b.c", ".b", "a.", "a b.c"])
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidNameError):
        GroupName.of_key(key)
