"""A process that leads a shared group, for ``bench.shared_runtime``.

Says ``ready`` when it leads, then answers each line with its CPU seconds; ends with its input.
"""

from __future__ import annotations

import asyncio
import sys
import time

import headrace
from bench.shared_runtime import member_of, until
from headrace.groups.shared.runtime.options import SharedOptions
from headrace.groups.shared.runtime.peer import LocalPeer


async def main(url: str) -> None:
    loop = asyncio.get_running_loop()
    async with headrace.open(url, housekeeping=False) as hr:
        peer = LocalPeer(hr.host, SharedOptions())
        await peer.open()
        member = member_of(peer, "first")
        await until(lambda: bool(member.units))
        print("ready", flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(time.process_time(), len(peer.leaders), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
