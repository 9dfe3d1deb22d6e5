"""Config records: the document's JSON, every rule in its order, and pure updates."""

from __future__ import annotations

import doctest
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    BufferSizeError,
    GroupAssignmentError,
    GroupConfigDecodeError,
    GroupExistsError,
    GroupFilterError,
    GroupMembersError,
    GroupUpdateError,
    InvalidGroupConfigError,
    MaxMembersError,
    MemberMappingsError,
    PartitioningWildcardsError,
)
from headrace.groups.partitioned.core import config as module
from headrace.groups.partitioned.core.changes import (
    add_members,
    check_change,
    check_same,
    delete_mappings,
    drop_members,
    set_mappings,
)
from headrace.groups.partitioned.core.config import (
    Distribution,
    ElasticGroupConfig,
    MemberMapping,
    StaticGroupConfig,
    decode_elastic,
    decode_static,
    encode,
    make_elastic,
    make_static,
)
from headrace.groups.partitioned.core.distribution import moved


def mapping(text: str) -> tuple[MemberMapping, ...]:
    """``m1:0,1 m2:2`` as mappings."""
    pairs = (part.split(":") for part in text.split())
    return tuple(
        MemberMapping(m, tuple(int(p) for p in owned.split(",") if p)) for m, owned in pairs
    )


def elastic(**changes: Any) -> ElasticGroupConfig:
    given: dict[str, Any] = {
        "max_members": 6,
        "filter": "orders.*.*",
        "partitioning_wildcards": [2],
        "members": ["m1", "m2"],
    }
    return make_elastic(**(given | changes))


def test_docstring_example_holds() -> None:
    assert doctest.testmod(module).failed == 0


# --- records -------------------------------------------------------------------------------


def test_elastic_json_has_the_field_names_of_the_document() -> None:
    config = elastic(buffered_events_max=500, members=["m2", "m1", "m2"])
    assert json.loads(encode(config)) == {
        "max_members": 6,
        "filter": "orders.*.*",
        "partitioning-wildcards": [2],
        "msg-buffer-size": 500,
        "members": ["m1", "m2"],
    }
    mapped = elastic(members=[], member_mappings=mapping("m1:0,1,2 m2:3,4,5"))
    assert json.loads(encode(mapped))["member-mappings"] == [
        {"member": "m1", "partitions": [0, 1, 2]},
        {"member": "m2", "partitions": [3, 4, 5]},
    ]


def test_static_json_has_the_field_names_of_the_document() -> None:
    assert json.loads(encode(make_static(max_members=2, members=["b", "a"]))) == {
        "max_members": 2,
        "filter": "",
        "members": ["a", "b"],
    }


def test_records_written_by_others_are_read_and_sorted() -> None:
    text = '{"max_members":3,"filter":"a.*","partitioning-wildcards":[1],"members":["z","b","z"]}'
    assert decode_elastic(text).members == ("b", "z")
    assert decode_static('{"max_members":3,"filter":""}').members == ()


@given(
    st.integers(1, 12),
    st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6),
    st.sampled_from(Distribution),
)
def test_every_config_survives_the_round_trip(
    max_members: int, members: list[str], distribution: Distribution
) -> None:
    config = elastic(max_members=max_members, members=members, distribution=distribution)
    assert decode_elastic(encode(config)) == config
    fixed = make_static(max_members=max_members, members=members, filter="x.>")
    assert decode_static(encode(fixed)) == fixed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"max_members":"3","filter":""}',
        '{"max_members":3,"filter":"","surprise":1}',
        '{"max_members":3,"filter":"","members":[1]}',
        b"\xff\xfe",
    ],
)
def test_what_is_not_a_config_is_refused(text: str | bytes) -> None:
    with pytest.raises(GroupConfigDecodeError):
        decode_static(text)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_refused_as_a_config(data: bytes) -> None:
    with pytest.raises(InvalidGroupConfigError):
        decode_elastic(data)


# --- rules ---------------------------------------------------------------------------------

ELASTIC_RULES: list[tuple[dict[str, Any], type[InvalidGroupConfigError], str]] = [
    ({"max_members": 0}, MaxMembersError, "at least 1"),
    ({"max_members": 100_001}, MaxMembersError, "at most"),
    ({"filter": ""}, GroupFilterError, "needs a filter"),
    ({"filter": "a..b"}, GroupFilterError, "empty"),
    ({"filter": "a.>"}, GroupFilterError, "no '\\*'"),
    ({"filter": "a.*b"}, GroupFilterError, "no '\\*'"),
    ({"partitioning_wildcards": [1, 2, 1]}, PartitioningWildcardsError, "3 partitioning"),
    ({"partitioning_wildcards": [2, 2]}, PartitioningWildcardsError, "2 is given twice"),
    ({"partitioning_wildcards": [0]}, PartitioningWildcardsError, "0 does not exist"),
    ({"partitioning_wildcards": [3]}, PartitioningWildcardsError, "3 does not exist"),
    ({"buffered_events_max": -1}, BufferSizeError, "max_buffered .* is -1"),
    ({"member_mappings": mapping("m1:0,1,2,3,4,5")}, GroupMembersError, "both given"),
    ({"members": ["a.b"]}, GroupMembersError, "invalid member name 'a.b'"),
    (
        {"members": [], "max_members": 1, "member_mappings": mapping("m1:0 m2:")},
        MemberMappingsError,
        "2 members are mapped, but max_members is 1",
    ),
    (
        {"members": [], "member_mappings": mapping("m1:0,1,2 m1:3,4,5")},
        MemberMappingsError,
        "'m1' is mapped twice",
    ),
    (
        {"members": [], "member_mappings": mapping("m1:0,1,2 m2:2,3,4,5")},
        MemberMappingsError,
        "partition 2 is mapped twice: to 'm1' and to 'm2'",
    ),
    (
        {"members": [], "member_mappings": mapping("m1:0,1,2,3,4,5,6")},
        MemberMappingsError,
        "partition 6 of member 'm1' does not exist",
    ),
    (
        {"members": [], "member_mappings": mapping("m1:0,1,2,3,4,-1")},
        MemberMappingsError,
        "partition -1 of member 'm1' does not exist",
    ),
    (
        {"members": [], "member_mappings": mapping("m1:0,1 m2:3,4,5")},
        MemberMappingsError,
        "1 of 6 partitions are not mapped, the first is 2",
    ),
    (
        {"members": [], "member_mappings": mapping("m/1:0,1,2,3,4,5")},
        GroupMembersError,
        "invalid member name",
    ),
]


@pytest.mark.parametrize(("wrong", "error", "says"), ELASTIC_RULES)
def test_each_rule_has_its_own_message(
    wrong: dict[str, Any], error: type[InvalidGroupConfigError], says: str
) -> None:
    with pytest.raises(error, match=says):
        elastic(**wrong)


def test_rules_are_checked_in_their_order() -> None:
    """A config that breaks every rule is refused for one after the other as they are mended."""
    broken: dict[str, Any] = {
        "max_members": 0,
        "filter": "",
        "partitioning_wildcards": [3, 3, 3],
        "members": ["m1"],
        "member_mappings": mapping("m1:0,9 m1:0 m2: m3: m4:"),
    }
    mend: list[tuple[type[InvalidGroupConfigError], str, dict[str, Any]]] = [
        (MaxMembersError, "at least 1", {"max_members": 4}),
        (GroupFilterError, "needs a filter", {"filter": "a.b"}),
        (GroupFilterError, "no '\\*'", {"filter": "a.*.*"}),
        (PartitioningWildcardsError, "3 partitioning", {"partitioning_wildcards": [3, 3]}),
        (PartitioningWildcardsError, "3 is given twice", {"partitioning_wildcards": [3]}),
        (PartitioningWildcardsError, "3 does not exist", {"partitioning_wildcards": [1]}),
        (GroupMembersError, "both given", {"members": []}),
        (MemberMappingsError, "5 members", {"member_mappings": mapping("m1:0,9 m1:0 m2:")}),
        (MemberMappingsError, "mapped twice", {"member_mappings": mapping("m1:0,9 m3:0 m2:")}),
        (MemberMappingsError, "0 is mapped twice", {"member_mappings": mapping("m1:0,9 m2:")}),
        (MemberMappingsError, "9 of member", {"member_mappings": mapping("m1:0 m2:1")}),
        (MemberMappingsError, "2 of 4", {"member_mappings": mapping("m1:0,2 m2:1,3")}),
    ]
    for error, says, mended in mend:
        with pytest.raises(error, match=says):
            make_elastic(**broken)
        broken |= mended
    assert make_elastic(**broken).assignment() == {"m1": (0, 2), "m2": (1, 3)}


def test_static_rules() -> None:
    with pytest.raises(MaxMembersError):
        make_static(max_members=0)
    with pytest.raises(GroupFilterError):
        make_static(max_members=1, filter="a..b")
    with pytest.raises(GroupMembersError, match="both given"):
        make_static(max_members=1, members=["a"], member_mappings=mapping("a:0"))
    with pytest.raises(MemberMappingsError, match="not mapped"):
        make_static(max_members=2, member_mappings=mapping("a:0"))


def test_too_many_members_are_kept_and_own_nothing() -> None:
    config = elastic(max_members=2, members=["c", "a", "b"])
    assert config.members == ("a", "b", "c")
    assert config.assignment() == {"a": (0,), "b": (1,), "c": ()}
    assert drop_members(config, ["a"]).assignment() == {"b": (0,), "c": (1,)}


# --- changes -------------------------------------------------------------------------------


def test_members_come_and_go() -> None:
    config = add_members(elastic(), ["m3", "m1", "m0"])
    assert config.members == ("m0", "m1", "m2", "m3")
    assert drop_members(config, ["m0", "m9"]).members == ("m1", "m2", "m3")


def test_members_are_neither_added_nor_dropped_under_mappings() -> None:
    mapped = set_mappings(elastic(), mapping("a:0,1,2,3,4 b:5"))
    assert (mapped.members, mapped.assignment()) == ((), {"a": (0, 1, 2, 3, 4), "b": (5,)})
    with pytest.raises(GroupUpdateError, match="cannot add members"):
        add_members(mapped, ["c"])
    with pytest.raises(GroupUpdateError, match="cannot drop members"):
        drop_members(mapped, ["a"])
    with pytest.raises(MemberMappingsError):
        set_mappings(mapped, mapping("a:0"))
    with pytest.raises(MemberMappingsError, match="no mappings"):
        set_mappings(mapped, ())


def test_deleting_the_mapping_goes_back_to_members() -> None:
    mapped = set_mappings(elastic(), mapping("b:0,1,2,3,4 a:5"))
    assert delete_mappings(mapped).members == ("a", "b")
    assert delete_mappings(mapped, ["x"]).members == ("x",)
    assert delete_mappings(mapped, []).assignment() == {}
    with pytest.raises(GroupUpdateError, match="no mapping"):
        delete_mappings(elastic())


def test_the_sticky_assignment_is_kept_in_the_config_through_every_change() -> None:
    config = elastic(max_members=8, distribution=Distribution.STICKY)
    assert config.assignment() == {"m1": (0, 1, 2, 3), "m2": (4, 5, 6, 7)}
    three = add_members(config, ["m0"])
    assert len(moved(config.assignment(), three.assignment())) == 2
    assert decode_elastic(encode(three)) == three
    mapped = set_mappings(three, mapping("m1:0 m2:1,2,3,4,5,6,7"))
    back = delete_mappings(mapped)
    assert back.assignment() == {"m1": (0, 5, 6, 7), "m2": (1, 2, 3, 4)}
    nobody = drop_members(back, ["m1", "m2"])
    assert nobody.assignment() == {}
    assert add_members(nobody, ["m2", "m1"]).assignment() == back.assignment()


@pytest.mark.parametrize(
    "kept",
    [
        [],
        [{"member": "m1", "partitions": [0, 1, 2, 3, 4, 5]}],
        [{"member": "m1", "partitions": [0, 1, 2]}, {"member": "m9", "partitions": [3, 4, 5]}],
        [{"member": "m1", "partitions": [0, 1, 2, 3]}, {"member": "m2", "partitions": [4, 5]}],
        [{"member": "m1", "partitions": [0, 1, 2]}, {"member": "m2", "partitions": [3, 4]}],
    ],
)
def test_a_damaged_sticky_assignment_is_refused(kept: list[dict[str, Any]]) -> None:
    record = json.loads(encode(elastic(distribution=Distribution.STICKY)))
    with pytest.raises(GroupAssignmentError):
        decode_elastic(json.dumps(record | {"assignment": kept}))


def test_an_assignment_is_not_kept_under_blocks() -> None:
    record = json.loads(encode(elastic())) | {"assignment": [{"member": "m1", "partitions": [0]}]}
    with pytest.raises(GroupAssignmentError):
        decode_elastic(json.dumps(record))


def test_only_members_and_mappings_may_change() -> None:
    config = elastic()
    check_change(config, add_members(config, ["m7"]))
    for wrong in (
        {"max_members": 7},
        {"filter": "orders.*.*.*"},
        {"partitioning_wildcards": [1]},
        {"buffered_events_max": 9},
        {"distribution": Distribution.STICKY},
    ):
        with pytest.raises(GroupUpdateError):
            check_change(config, elastic(**wrong))
    fixed = make_static(max_members=2, members=["a"])
    check_change(fixed, fixed)
    with pytest.raises(GroupUpdateError, match="static"):
        check_change(fixed, make_static(max_members=2, members=["a", "b"]))
    with pytest.raises(GroupUpdateError):
        check_change(fixed, config)


def test_creating_again_is_fine_only_with_the_same_config() -> None:
    check_same("billing", elastic(), elastic(members=["m2", "m1", "m1"]))
    with pytest.raises(GroupExistsError, match="billing"):
        check_same("billing", elastic(), elastic(max_members=5))
    assert isinstance(make_static(max_members=1), StaticGroupConfig)
