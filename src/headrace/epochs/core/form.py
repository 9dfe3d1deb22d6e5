"""What a named subscription was made for, and its frontier, as the catalog keeps them."""

from __future__ import annotations

import msgspec

from headrace.epochs.core import stored
from headrace.epochs.core.antichains import Frontier


class SubscriptionForm(msgspec.Struct, frozen=True, array_like=True):
    """What a subscription was made for; it is opened in this way only."""

    streams: tuple[tuple[str, int], ...]
    length: int
    mode: str
    start: str
    segments: tuple[int, ...] | None = None


_WHAT, _REMEDY = "subscription to epochs", "forget it with: headrace epoch forget {name}"

encode_form = encode_frontier = stored.encode
decode_form = stored.decoder(SubscriptionForm, _WHAT, _REMEDY)
decode_frontier = stored.decoder(Frontier, _WHAT, _REMEDY)
