"""A close that could not store the last answers says so, once."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.errors import Fenced
from headrace.groups.operations.seek import seek
from tests.groups.test_seek import Kind, Readers, Static


@pytest.mark.parametrize("kind", [Static(), Readers()], ids=["static", "reader"])
def test_what_a_close_has_told_is_not_told_again_by_the_log(catalog_url: str, kind: Kind) -> None:
    """The handle is still there, as in a function that goes on after it."""

    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await kind.make(hr)
            await kind.send(hr, 0, 16)
            entered = kind.member(hr)
            deliveries = await entered.__aenter__()
            held = [await anext(deliveries) for _ in range(4)]
            seek(hr.log, "billing", "earliest")  # it takes the units; no news is heard meanwhile
            for each in held:
                each.ack_soon()
            with pytest.raises(Fenced):
                await entered.__aexit__(None, None, None)

    asyncio.run(work())
