"""Mutual TLS between programs: both sides are verified before any message is sent.

The certificate of a program serves for connections in both directions.  With an authority, each
side asks the other for a certificate that the authority has signed.  Without one, the dialled side
is verified by the machine's own authorities, and the dialling side by the secret alone.

Settings that cannot work are found when a log is opened: the program shakes hands with itself, as
another one with the same settings would.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.errors import TLSError
from headrace.subjects.arguments import check_fields

ROUNDS_MAX = 10
"""The most rounds of the handshake with oneself; it takes three."""

_NO_TLS = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "PACKET_LENGTH")


class TLS(msgspec.Struct, frozen=True, kw_only=True):
    """Files, as PEM, by which a program proves who it is and knows who others are.

    The certificate names the address that others dial (``SharedOptions.advertise``, else its
    ``host``), and is good for servers and clients.
    """

    certificate: str | Path
    """The certificate, followed by its intermediate ones, if there are any."""
    key: str | Path
    """The private key: not encrypted, and not readable by everybody."""
    authority: str | Path | None = None
    """The certificate authority of all programs that take part; without one the machine's own
    authorities are trusted, and clients need no certificate."""

    def __post_init__(self) -> None:
        check_fields(self)


class Secured:
    """TLS of an open program."""

    def __init__(self, tls: TLS, host: str) -> None:
        """Read the files, and check that a client dialling `host` accepts them; blocks for
        milliseconds."""
        for file in (tls.certificate, tls.key, tls.authority or tls.certificate):
            try:
                Path(file).read_bytes()
            except OSError as error:
                raise TLSError(f"{file} cannot be read: {error.strerror}") from error
        _check_key(Path(tls.key))
        self._listening = _context(tls, ssl.PROTOCOL_TLS_SERVER)
        self.dialling = _context(tls, ssl.PROTOCOL_TLS_CLIENT)
        if tls.authority is None:
            self.dialling.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            self._listening.verify_mode = ssl.CERT_REQUIRED
        try:
            _rehearse(self._listening, self.dialling, host)
        except ssl.SSLError as error:
            raise TLSError(
                f"{tls.certificate} would be refused by others with the same settings, who dial "
                f"{host}: {why(error)}"
            ) from error

    def listening(self, refused: Callable[[str], None]) -> ssl.SSLContext:
        """The server's context; `refused` is called with the reason when a handshake fails."""

        class Watched(ssl.SSLObject):
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except ssl.SSLError as error:
                    if (reason := why(error)) is not None:
                        refused(reason)
                    raise

        # asyncio reports a failed handshake to nobody.
        self._listening.sslobject_class = Watched
        return self._listening


def why(error: BaseException) -> str | None:
    """Why TLS has refused the other side, or was refused by it; None if that is not what failed."""
    match error:
        case ssl.SSLWantReadError() | ssl.SSLWantWriteError() | ssl.SSLSyscallError():
            return None
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError(reason="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            return "it shows no certificate"
        case ssl.SSLError(reason=str(reason)) if "ALERT" in reason:
            return f"it does not trust the certificate of this process ({reason.lower()})"
        case ssl.SSLError(reason=str(reason)) if any(each in reason for each in _NO_TLS):
            return "it does not speak TLS"
        case ssl.SSLError():
            return f"TLS fails: {error.reason or error}"
    return None


def _check_key(key: Path) -> None:
    """Refuse a key that others can read: they could impersonate this program."""
    mode = key.stat().st_mode
    if os.name == "posix" and mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise TLSError(
            f"the key {key} is open to other users of this machine (mode {mode & 0o777:03o}); "
            f"close it: chmod 600 {key}"
        )


def _context(tls: TLS, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3

    def encrypted() -> str:
        raise TLSError(f"the key {tls.key} is encrypted; it has to be given without a password")

    try:
        context.load_cert_chain(tls.certificate, tls.key, encrypted)
    except ssl.SSLError as error:
        what = (
            f"the key {tls.key} does not belong to the certificate {tls.certificate}"
            if error.reason == "KEY_VALUES_MISMATCH"
            else f"{tls.certificate} and {tls.key} are no certificate and key in PEM"
        )
        raise TLSError(f"{what} ({error.reason or error})") from error
    if tls.authority is not None:
        try:
            context.load_verify_locations(tls.authority)
        except ssl.SSLError as error:
            raise TLSError(
                f"{tls.authority} holds no certificate of an authority in PEM "
                f"({error.reason or error})"
            ) from error
    return context


def _rehearse(listening: ssl.SSLContext, dialling: ssl.SSLContext, host: str) -> None:
    """Shake hands with oneself; raises what another program would."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        dialling.wrap_bio(back, there, server_hostname=host),
        listening.wrap_bio(there, back, server_side=True),
    )
    for _ in range(ROUNDS_MAX):
        waiting = 0
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
        if not waiting:
            return
