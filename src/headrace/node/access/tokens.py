"""Tokens: 256 random bits, shown once, kept as a hash.

They are entries of the bucket ``node-tokens``.  A node's own token is in a file of the catalog's
folder that only its owner can read, or in ``HEADRACE_TOKEN``; whoever can read that file can read
the catalog itself, so it may do everything.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from headrace.catalog import Catalog, Tx, entries
from headrace.catalog.records import Records
from headrace.errors import InvalidInputError
from headrace.groups.findings import moment
from headrace.node.access.roles import ADMIN, Who, check_roles, check_scope
from headrace.subjects import check_name

BUCKET = "node-tokens"
FILE = "node.token"
VARIABLE = "HEADRACE_TOKEN"
PREFIX = "hr_"
OWN = "node"
TOKENS_MAX = 1_000
_FORM = re.compile(r"hr_[A-Za-z0-9_-]{43}")


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored: never the token itself."""

    name: str
    digest: str
    roles: tuple[str, ...]
    subjects: tuple[str, ...] = ()
    created_us: int = 0
    expires_us: int | None = None

    def is_over(self, now_us: int) -> bool:
        return self.expires_us is not None and self.expires_us <= now_us


class TokenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A token, as people see it."""

    token: str
    """Its name."""
    roles: tuple[str, ...]
    subjects: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    expired: bool


class MadeToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new token; ``secret`` is shown this once."""

    token: str
    secret: str
    roles: tuple[str, ...]
    subjects: tuple[str, ...]
    expires_at: datetime | None


_records = Records(
    TokenRecord,
    "token",
    "remove it: headrace token rm {name}",
    bucket=BUCKET,
    key=lambda record: record.name,
)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def create(
    catalog: Catalog,
    name: str,
    roles: tuple[str, ...],
    subjects: tuple[str, ...] = (),
    expires_s: float | None = None,
) -> MadeToken:
    """Make a token; its secret is not kept."""
    check_name(name, "token name")
    if name == OWN:
        raise InvalidInputError(f"{OWN!r} is the name of the node's own token; choose another")
    if expires_s is not None and not 1 <= expires_s <= 10 * 366 * 86_400:
        raise InvalidInputError("a token expires after a second to ten years")
    found_roles, scope, secret = check_roles(roles), check_scope(subjects), new_secret()

    def put(tx: Tx) -> TokenRecord:
        if entries.get(tx, BUCKET, name) is not None:
            raise InvalidInputError(f"there is a token {name!r} already: headrace token rm {name}")
        if len(entries.keys(tx, BUCKET, "")) >= TOKENS_MAX:
            raise InvalidInputError(f"there are {TOKENS_MAX} tokens, which is the most")
        now_us = tx.now_us()
        record = TokenRecord(
            name=name,
            digest=digest_of(secret),
            roles=found_roles,
            subjects=scope,
            created_us=now_us,
            expires_us=None if expires_s is None else now_us + int(expires_s * 1e6),
        )
        entries.put(tx, BUCKET, name, _records.encode(name, record))
        return record

    made = catalog.write(put, locks=(entries.lock(BUCKET),))
    return MadeToken(
        token=name,
        secret=secret,
        roles=made.roles,
        subjects=made.subjects,
        expires_at=None if made.expires_us is None else moment(made.expires_us),
    )


def remove(catalog: Catalog, name: str) -> None:
    """Whoever has it is not let in any more."""

    def drop(tx: Tx) -> None:
        if entries.get(tx, BUCKET, name) is None:
            known = ", ".join(entries.keys(tx, BUCKET, "")[:20]) or "none"
            raise InvalidInputError(f"there is no token {name!r}; there are: {known}")
        entries.delete(tx, BUCKET, name)

    catalog.write(drop, locks=(entries.lock(BUCKET),))


def listed(catalog: Catalog) -> tuple[TokenLine, ...]:
    """Every token, by name."""
    now_us = catalog.read(lambda tx: tx.now_us())
    return tuple(
        TokenLine(
            token=one.name,
            roles=one.roles,
            subjects=one.subjects,
            created_at=moment(one.created_us),
            expires_at=None if one.expires_us is None else moment(one.expires_us),
            expired=one.is_over(now_us),
        )
        for one in read_all(catalog)
    )


def read_all(catalog: Catalog) -> list[TokenRecord]:
    found = []
    for entry in catalog.entries.list(BUCKET):
        record = _records.decode_or(entry.key, entry.value or b"", None)
        if record is not None:
            found.append(record)
    return sorted(found, key=lambda each: each.name)


def own_token(folder: Path | None, *, create: bool = True) -> str | None:
    """The node's own token: from the environment, else from the file beside the catalog."""
    given = os.environ.get(VARIABLE)
    if given:
        if not _FORM.fullmatch(given):
            raise InvalidInputError(
                f"{VARIABLE} is no token: it has to be {PREFIX} and 43 letters, as made by "
                "python -c 'import secrets; print(\"hr_\" + secrets.token_urlsafe(32))'"
            )
        return given
    if folder is None:
        return new_secret() if create else None
    file = folder / FILE
    with suppress(OSError):
        text = file.read_text().strip()
        if _FORM.fullmatch(text):
            return text
    return _made(file) if create else None


def _made(file: Path) -> str:
    secret = new_secret()
    spare = file.with_name(f"{FILE}.{os.getpid()}")
    try:
        handle = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as out:
            out.write(secret + "\n")
        try:
            os.link(spare, file)  # whoever is first makes it
        except FileExistsError:
            text = file.read_text().strip()
            if _FORM.fullmatch(text):
                return text
            os.replace(spare, file)
    except OSError:
        return secret  # a folder that may not be written: good while this node runs
    finally:
        with suppress(OSError):
            spare.unlink()
    return secret


class Keyring:
    """The tokens of a catalog in memory, and whose a secret is."""

    def __init__(self, own: str) -> None:
        self._own = digest_of(own)
        self._by_digest: dict[str, TokenRecord] = {}
        self.key = hashlib.sha256(b"cookie " + own.encode()).digest()

    def load(self, records: list[TokenRecord]) -> None:
        self._by_digest = {each.digest: each for each in records}

    def who(self, secret: str, now_us: int) -> Who | None:
        """Whose token it is; None if nobody's."""
        digest = digest_of(secret)
        if hmac.compare_digest(digest, self._own):
            return Who(name=OWN, roles=(ADMIN,))
        record = self._by_digest.get(digest)
        if record is None or record.is_over(now_us):
            return None
        return _who(record)

    def named(self, name: str, mark: str, now_us: int) -> Who | None:
        """The one of this name whose hash begins so, if it is still good: for cookies."""
        if name == OWN and hmac.compare_digest(mark, self._own[: len(mark)]):
            return Who(name=OWN, roles=(ADMIN,))
        for record in self._by_digest.values():
            if record.name == name and hmac.compare_digest(mark, record.digest[: len(mark)]):
                return None if record.is_over(now_us) else _who(record)
        return None

    def mark_of(self, who: Who) -> str:
        if who.name == OWN:
            return self._own[:16]
        for record in self._by_digest.values():
            if record.name == who.name:
                return record.digest[:16]
        return ""


def _who(record: TokenRecord) -> Who:
    return Who(name=record.name, roles=record.roles, subjects=record.subjects)
