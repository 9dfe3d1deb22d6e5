"""What a catalog still had each time that it went back: how far its segments reached.

A place below such a head is what it was.  What is further on was lost, and its offsets were given
out again.  Who keeps places outside the catalog keeps with them the number of the last turn, and
can tell by it, however much has been appended since.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.catalog.lineage import HEADS, RECORD, SETTING, turns
from headrace.catalog.transaction import Query, Tx

_heads = msgspec.json.Decoder(dict[int, int], strict=False).decode


def newest(tx: Tx) -> str | None:
    """The last turn, empty before the first; None where the catalog does not keep them."""
    found = _settings(tx)
    if SETTING not in found:
        return None
    known = turns(found[RECORD]) if RECORD in found else []
    return str(known[-1].at_us) if known else ""


def heads_since(tx: Tx, history: str) -> list[Mapping[int, int]]:
    """{segment id: head} at each turn since one, as far as they are kept."""
    found = _settings(tx)
    known = [str(turn.at_us) for turn in turns(found.get(RECORD, "[]"))]
    since = known[known.index(history) + 1 :] if history in known else known
    kept: list[Mapping[int, int]] = []
    for number in since:
        row = tx.row("SELECT value FROM meta WHERE key = ?", (f"{HEADS}{number}",))
        if row is not None:
            kept.append(_heads(row[0]))
    return kept


def asking() -> Query:
    """The query of :func:`newest`."""
    return "SELECT key, value FROM meta WHERE key IN (?, ?)", (SETTING, RECORD)


def _settings(tx: Tx) -> dict[str, str]:
    return {key: str(value) for key, value in tx.rows(*asking())}
