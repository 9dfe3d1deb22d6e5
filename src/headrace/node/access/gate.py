"""The gate: what every request passes before a route sees it.

The name by which the node is called (``Host``) has to be one that it was told to serve, so that no
foreign page reaches it by a name of its own (DNS rebinding).  A change, and a live stream, must not
come from another site; a change by cookie needs a header that a foreign page cannot send.  Wrong
tokens are counted by address, and slowed down.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

from headrace.node.access import sessions
from headrace.node.access.roles import ADMIN, Who
from headrace.node.access.tokens import Keyring
from headrace.node.problems import Problem

HEADER = "x-headrace"
TRIES = 10
TRIES_S = 60.0
ADDRESSES_MAX = 10_000
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SECRET_WORDS = ("token", "access_token", "secret", "authorization", "code")

NO_ONE = Who(name="nobody", roles=(ADMIN,))
"""Everybody, where no token is asked for."""


class Gate(msgspec.Struct, kw_only=True):
    """Who is let in, and from where."""

    keyring: Keyring
    hosts: frozenset[str]
    """Names with ports, as browsers send them."""
    origins: frozenset[str]
    cookie: str
    secure: bool
    open: bool
    """Whether no token is asked for."""
    now_s: Callable[[], float] = time.time
    _failed: OrderedDict[str, list[float]] = msgspec.field(default_factory=OrderedDict)

    def check_host(self, request: Request) -> None:
        host = request.headers.get("host", "").lower()
        if host not in self.hosts:
            raise Problem(
                421,
                "WrongHost",
                f"this node is not called {host[:100]!r}; it serves {', '.join(sorted(self.hosts))}"
                " (serve --allow-host NAME adds one)",
            )

    def check_origin(self, request: Request) -> None:
        """A change or a live stream comes from the node's own page, or from no page at all."""
        site = request.headers.get("sec-fetch-site")
        if site not in (None, "same-origin", "none"):
            raise Problem(403, "ForeignOrigin", "this was asked for by the page of another site")
        origin = request.headers.get("origin")
        if origin is None:
            return
        parts = urlsplit(origin)
        if origin.lower() not in self.origins or not parts.netloc:
            raise Problem(403, "ForeignOrigin", "this was asked for by the page of another site")

    def check_header(self, request: Request, who: Who) -> None:
        if who.by_cookie and request.headers.get(HEADER) != "1":
            raise Problem(403, "HeaderMissing", f"a change by cookie needs the header {HEADER}: 1")

    def who(self, request: Request) -> Who:
        """Somebody with a token or a cookie; raises otherwise."""
        for name in SECRET_WORDS:
            if name in request.query_params:
                raise Problem(
                    400,
                    "SecretInAddress",
                    "a secret does not belong in an address, where it is logged; send the token "
                    "as a header: Authorization: Bearer TOKEN",
                )
        if self.open:
            return NO_ONE
        address = request.client.host if request.client else "?"
        given = request.headers.get("authorization")
        cookie = request.cookies.get(self.cookie)
        if given is None and cookie is None:
            raise Problem(401, "TokenMissing", _ASK)
        now_s = self.now_s()
        if given is not None:
            kind, _, secret = given.partition(" ")
            found = None
            if kind.lower() == "bearer":
                found = self.keyring.who(secret.strip(), int(now_s * 1e6))
        else:
            found = sessions.who_of(self.keyring, cookie or "", now_s)
        if found is None:
            if given is not None:
                self.failed(address)
            raise Problem(401, "TokenRefused", f"this is no good token or cookie any more; {_ASK}")
        return found

    # -- slowing down -------------------------------------------------------------------

    def failed(self, address: str) -> None:
        """A wrong token or code came from there; raises after too many.

        Good ones are let in all the same: others at one address, or on one machine, must not lock
        each other out.
        """
        self._check_tries(address)
        tries = self._failed.pop(address, [])
        self._failed[address] = [*tries[-TRIES:], self.now_s()]
        while len(self._failed) > ADDRESSES_MAX:
            self._failed.popitem(last=False)

    def _check_tries(self, address: str) -> None:
        since_s = self.now_s() - TRIES_S
        recent = [at_s for at_s in self._failed.get(address, ()) if at_s > since_s]
        if len(recent) >= TRIES:
            wait_s = max(1, int(recent[-TRIES] + TRIES_S - self.now_s()))
            raise Problem(
                429,
                "TooManyTries",
                f"{TRIES} wrong tokens came from this address within a minute; try again in "
                f"{wait_s} s",
                headers={"retry-after": str(wait_s)},
            )


_ASK = (
    "open the link that headrace serve printed, or that headrace token link prints, or send a "
    "token: Authorization: Bearer TOKEN"
)
