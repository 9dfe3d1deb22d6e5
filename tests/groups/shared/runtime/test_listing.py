"""What a leader is told of the log: what is new, and nothing twice."""

from __future__ import annotations

import headrace.sync
from headrace.groups.shared.runtime.listing import Look, Segments


def test_a_look_reads_only_streams_in_which_something_happened(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url, housekeeping=False) as hr:
        for name in ("orders", "refunds"):
            hr.create_stream(name, [f"{name}.>"], segments=2)
        segments = Segments(">")

        def look() -> Look:
            return hr.client.log.catalog.read(segments.look, snapshot=True)

        first = look()
        assert len(segments.changes(first).segments) == 4
        again = look()
        assert again.places == {}
        listing = segments.changes(again)
        assert (listing.segments, listing.gone) == ((), ())
        hr.publish("orders.1", b"x", key="k")
        second = look()
        assert {place.stream_id for place in second.places.values()} == {
            stream_id for stream_id, name in second.streams.items() if name == "orders"
        }
        changed = segments.changes(second)
        assert [(info.head, info.end) for info in changed.segments] == [(1, None)]
        hr.client.log.split("refunds", 0, 2)
        third = segments.changes(look())
        assert sorted(info.unit for info in third.segments) == [
            "refunds/0",
            "refunds/2",
            "refunds/3",
        ]
        assert third.segments[-1].predecessors == ("refunds/0",)
        hr.delete_stream("orders")
        assert sorted(segments.changes(look()).gone) == ["orders/0", "orders/1"]


def test_a_stream_made_again_is_told_as_gone_first_and_then_as_new(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url, housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"], segments=1)
        segments = Segments(">")

        def look() -> Look:
            return hr.client.log.catalog.read(segments.look, snapshot=True)

        segments.changes(look())
        hr.delete_stream("orders")
        hr.create_stream("orders", ["orders.>"], segments=1)
        assert segments.changes(look(), {"orders/0"}).gone == ("orders/0",)
        assert segments.changes(look(), {"orders/0"}).segments == ()
        assert [info.unit for info in segments.changes(look(), set()).segments] == ["orders/0"]


def test_markers_are_told_apart_from_events(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url, housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"], segments=1)
        segments, log = Segments(">"), hr.client.log
        hr.publish("orders.1", b"x")
        log.append_marker("orders", 0, b"internal")
        (info,) = segments.changes(log.catalog.read(segments.look, snapshot=True)).segments
        assert (info.head, info.markers) == (2, (1,))
