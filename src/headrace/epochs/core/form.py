"""What a named subscription was made for, and its frontier, as the catalog keeps them."""

from __future__ import annotations

import msgspec

from headrace.epochs.core.antichains import Frontier


class SubscriptionForm(msgspec.Struct, frozen=True, array_like=True):
    """What a subscription was made for; it is opened in this way only."""

    streams: tuple[tuple[str, int], ...]
    length: int
    mode: str
    start: str
    segments: tuple[int, ...] | None = None


encode_form = msgspec.msgpack.Encoder().encode
decode_form = msgspec.msgpack.Decoder(SubscriptionForm).decode
encode_frontier = msgspec.msgpack.Encoder().encode
decode_frontier = msgspec.msgpack.Decoder(Frontier).decode
