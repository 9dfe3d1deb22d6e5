"""Claims that are damaged are found, as far as something else tells what they were."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import headrace
from headrace.catalog import Tx
from headrace.groups import claims_audit

DAMAGE = {
    "token = 0 WHERE group_name = 'p.g'": "has the token 0",
    "token = -4 WHERE unit LIKE '%@%'": "has the token -4",
    "unit = '9' WHERE unit = '1'": "of a partition beyond the 2",
    "unit = 'q' WHERE unit = '1'": "of no partition and no segment",
    "unit = 's/8' WHERE unit LIKE 's/0@%'": "stream 's' never had",
    "token = token + 64 WHERE group_name = 'reader/r'": "and the state says",
    "unit = 's/1' WHERE group_name = 'reader/r'": "there is no claim of 's/0'",
    "token = token + 32, owner = NULL WHERE group_name = 'reader/r'": "was given",
}


async def every_kind(hr: headrace.Headrace) -> list[object]:
    await hr.create_stream("s", ["s.>"])
    await hr.create_stream("p", ["p.>"], partitions=2)
    await hr.groups.create_static("p", "g", max_members=2, members=["m"])
    await hr.publish("s.x", b"1")
    member = await hr.join("p", "g", "m").__aenter__()
    await member.settled()
    group = await hr.reader_groups.create("r", streams=["s"], start="earliest")
    reader = await group.reader("one").__aenter__()
    await (await anext(aiter(reader))).ack()
    session = await hr.session("a").__aenter__()
    await session.subscribe("$share/h/s.>", start="earliest")
    await (await anext(aiter(session))).ack()
    return [member, reader, session]


def flaws(hr: headrace.Headrace, damage: str) -> list[str]:
    """What is found after a change of claims, which is undone."""
    found: list[str] = []

    def look(tx: Tx) -> None:
        assert tx.execute(f"UPDATE claims SET {damage}"), damage
        found.extend(claims_audit.examine(tx))
        raise InterruptedError

    with pytest.raises(InterruptedError):
        hr.log.catalog.write(look)
    return found


def test_damaged_claims_are_found(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d", housekeeping=False) as hr:
            kept = await every_kind(hr)
            assert flaws(hr, "token = token") == []
            for damage, said in DAMAGE.items():
                found = await hr.in_thread(flaws, hr, damage)
                assert any(said in flaw for flaw in found), (damage, found)
            del kept

    asyncio.run(work())
