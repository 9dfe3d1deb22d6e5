"""Between processes: listening, dialling, and who is trusted."""

from __future__ import annotations

from headrace.errors.inputs import HeadraceError, InvalidInputError


class ListenError(HeadraceError):
    """This process cannot listen where others are to reach it."""


class FrameError(HeadraceError, ValueError):
    """A frame of another process cannot be read; its connection is dropped."""


class TLSError(InvalidInputError):
    """Certificate, key or authority cannot be used; says which, and why."""


class PeerRefusedError(HeadraceError):
    """Another process is not spoken to, since it is not verified as one of this catalog's."""
