"""One-time codes and cookies: how a browser gets in without a token in an address.

``serve`` prints a link with a code behind ``#``, which browsers send to nobody.  The page exchanges
it, once and within a minute, for a cookie.  A cookie names a token and is signed with a key made
from the node's own token, so it outlives a restart of the node and ends with its token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from headrace.node.access.roles import Who
from headrace.node.access.tokens import Keyring

CODE_S = 60
CODES_MAX = 100
COOKIE_S = 12 * 3600
COOKIE_BYTES_MAX = 1_000


class _Ticket(msgspec.Struct, frozen=True, array_like=True):
    name: str
    mark: str
    until_s: int


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_ticket_decoder = msgspec.msgpack.Decoder(_Ticket)


class Codes:
    """Codes that were given out and not used yet."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._codes: OrderedDict[str, tuple[Who, float]] = OrderedDict()

    def give(self, who: Who) -> str:
        while len(self._codes) >= CODES_MAX:
            self._codes.popitem(last=False)
        code = secrets.token_urlsafe(24)
        self._codes[_hashed(code)] = who, self._now_s() + CODE_S
        return code

    def take(self, code: str) -> Who | None:
        """Whoever has it gets in, once."""
        who, until_s = self._codes.pop(_hashed(code), (None, 0.0))
        return who if self._now_s() < until_s else None


def _hashed(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def cookie_of(keyring: Keyring, who: Who, now_s: float) -> str:
    """A cookie for somebody."""
    ticket = _Ticket(who.name, keyring.mark_of(who), int(now_s) + COOKIE_S)
    data = base64.urlsafe_b64encode(msgspec.msgpack.encode(ticket)).decode().rstrip("=")
    return f"{data}.{_signature(keyring, data)}"


def who_of(keyring: Keyring, cookie: str, now_s: float) -> Who | None:
    """Whose cookie it is; None if it is forged, old, or its token is gone."""
    if len(cookie) > COOKIE_BYTES_MAX:
        return None
    data, _, signature = cookie.partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(keyring, data).encode()):
        return None
    try:
        raw = base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
        ticket = _ticket_decoder.decode(raw)
    except (ValueError, msgspec.MsgspecError):
        return None
    if ticket.until_s <= now_s:
        return None
    who = keyring.named(ticket.name, ticket.mark, int(now_s * 1e6))
    return None if who is None else msgspec.structs.replace(who, by_cookie=True)


def _signature(keyring: Keyring, data: str) -> str:
    return hmac.new(keyring.key, data.encode(), hashlib.sha256).hexdigest()
