"""The secret by which programs of one catalog know each other."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

HEADER = "Authorization"


def shown(secret: str) -> dict[str, str]:
    """The header of a request that shows the secret."""
    return {HEADER: f"Bearer {secret}"}


class Admission:
    """Who is let in: nobody, until there is a secret."""

    def __init__(self) -> None:
        self._secret = b""

    def admit(self, secret: str) -> None:
        """From now on, who shows this secret is let in."""
        self._secret = secret.encode()

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether these headers show the secret, compared in constant time."""
        given = headers.get(HEADER, "").removeprefix("Bearer ").encode()
        return bool(self._secret) and hmac.compare_digest(given, self._secret)
