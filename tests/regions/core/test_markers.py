"""Markers on the wire, and where each goes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidMarkerError
from headrace.regions.core.markers import (
    Command,
    LaneEnd,
    Marker,
    RegionPosition,
    RequestMarker,
    ResponseMarker,
    SnapshotMarker,
    UpdateMarker,
    decode_marker,
    encode_marker,
    recipients,
)
from headrace.regions.core.stamps import Life, Stamp

MARKERS: list[Marker] = [
    RequestMarker("S1", "a", 2),
    ResponseMarker("S1", "a", 1, "b", 7),
    SnapshotMarker("S1", 9, (RegionPosition("b", 7),), (LaneEnd("a", 3),), ("c",)),
    UpdateMarker("billing", "a", "S1", (RegionPosition("b", 7),), (LaneEnd("a", 3),)),
    Command("billing", "a", Life(Stamp(3, "a")), (LaneEnd("a", 3),)),
]


@pytest.mark.parametrize("marker", MARKERS, ids=lambda m: type(m).__name__)
def test_marker_survives_the_wire(marker: Marker) -> None:
    assert decode_marker(encode_marker(marker)) == marker


@pytest.mark.parametrize(
    ("marker", "regions"),
    list(zip(MARKERS, [("b", "c"), (), (), ("b", "c"), ("b", "c")], strict=True)),
)
def test_marker_goes_to_whom_it_concerns(marker: Marker, regions: tuple[str, ...]) -> None:
    assert recipients(marker, ["b", "c"]) == regions


def test_response_goes_to_the_region_that_asked() -> None:
    assert recipients(MARKERS[1], ["a", "c"]) == ("a",)


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "request", "snapshot_id": "S", "source": "a"},
        {"type": "request", "snapshot_id": "S", "source": "a", "round": 3},
        {"type": "request", "snapshot_id": "", "source": "a", "round": 1},
        {"type": "response", "snapshot_id": "S", "source": "a", "round": 1, "region": "b",
         "position": -1},
        {"type": "snapshot", "snapshot_id": "S", "local": 2**63, "positions": []},
        {"type": "unheard-of"},
        [1, 2],
    ],
)  # fmt: skip
def test_broken_marker_is_refused(broken: object) -> None:
    with pytest.raises(InvalidMarkerError, match="cannot be read"):
        decode_marker(msgspec.msgpack.encode(broken))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(MARKERS), st.integers(0, 60))
def test_bytes_are_a_marker_or_refused(noise: bytes, marker: Marker, at: int) -> None:
    damaged = encode_marker(marker)[:at] + noise
    try:
        decoded = decode_marker(damaged)
    except InvalidMarkerError:
        return
    assert decode_marker(encode_marker(decoded)) == decoded
