"""A stream that groups consume is not taken away from under them, unless by force."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace.sync
from headrace.errors import InternalStreamError, StreamInUseError, UnknownGroupError

STATIC = "static group 'audit'"
ELASTIC = "elastic group 'billing'"
SHARED = "shared group 'watch:>'"


def make(hr: headrace.sync.Headrace) -> None:
    hr.create_stream("orders", ["orders.>"], partitions=2)
    hr.create_stream("other", ["other.>"])
    hr.publish("orders.1", b"one")
    hr.publish("other.1", b"one")
    hr.groups.create_static("orders", "audit", max_members=2, members=["m"])
    hr.groups.create_elastic("orders", "billing", max_members=2, filter="orders.*", wildcards=[1])
    hr.shared_groups.declare("watch", ">", start="earliest")


def state(hr: headrace.sync.Headrace) -> object:
    streams = hr.streams(internal=True)
    return streams, hr.groups.list(), [each.units for each in hr.shared_groups.list()]


def test_a_stream_that_is_consumed_is_left_alone(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url, housekeeping=False) as hr:
        make(hr)
        before = state(hr)
        with pytest.raises(StreamInUseError) as refused:
            hr.delete_stream("orders")
        assert refused.value.groups == (STATIC, ELASTIC, SHARED)
        assert all(each in str(refused.value) for each in refused.value.groups)
        with pytest.raises(InternalStreamError):
            hr.delete_stream("orders.billing", force=True)
        assert state(hr) == before
        hr.groups.delete("orders", "audit")
        hr.groups.delete("orders", "billing")
        hr.shared_groups.delete("watch")
        hr.delete_stream("orders")
        assert [stream.name for stream in hr.streams(internal=True)] == ["other"]


def test_by_force_its_own_groups_go_with_it_and_shared_ones_go_on(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url, housekeeping=False) as hr:
        make(hr)
        hr.create_stream("orders-2", ["orders-2.>"])
        hr.groups.create_elastic(
            "orders-2", "billing", max_members=2, filter="orders-2.*", wildcards=[1]
        )
        hr.delete_stream("orders", force=True)
        names = [stream.name for stream in hr.streams(internal=True)]
        assert names == ["orders-2", "orders-2.billing", "other"]
        with pytest.raises(UnknownGroupError):
            hr.groups.get("orders", "audit")
        assert hr.groups.get("orders-2", "billing")
        [watch] = hr.shared_groups.list()
        assert {unit.unit: unit.lag_events for unit in watch.units} == {
            "orders-2/0": 0,
            "other/0": 1,
        }


def test_a_stream_that_no_group_can_match_is_deleted_as_ever(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path, housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"])
        hr.create_stream("other", ["other.>"], partitions=1)
        hr.groups.create_static("other", "orders", max_members=1, members=["m"])
        hr.shared_groups.declare("watch", "other.>")
        hr.delete_stream("orders")
        assert [stream.name for stream in hr.streams()] == ["other"]
