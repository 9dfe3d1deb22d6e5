"""``headrace up``: everything in one command, on an empty folder or on what is there."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headrace.cli.done_shapes import EverythingUp
from headrace.cli.failures import EXIT_INTERRUPTED, shown_place
from headrace.cli.options import CATALOG_VARIABLE, NONE, Options
from headrace.cli.output import print_json, tell
from headrace.cli.serve import NODE, NodeOptions
from headrace.cli.token import link_command
from headrace.errors import HeadraceError
from headrace.groups.partitioned.filling import UP

if TYPE_CHECKING:
    from headrace.api.client import Headrace
    from headrace.catalog.leases import Lease
    from headrace.node.serving import Served

app = App(name="up", help_epilogue="")

LEASE_TTL_MS = 8_000
RENEW_S = 2.0
PIPELINE_END_S = 5.0
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux: a child hears when its parent is gone."""


_libc = ctypes.CDLL(None)  # loaded before any fork


class AlreadyUpError(HeadraceError):
    """Another ``headrace up`` runs on the catalog."""


@app.default
def up(
    *,
    spark: Annotated[bool, Parameter(help="Run the pipeline with Spark.")] = True,
    node: NodeOptions = NODE,
    options: Options = NONE,
) -> int:
    """Bring everything up: catalog, console, API, metrics, pipeline, retention, scaling.

    A catalog is made where there is none. Spark starts in the background; until it is there, small
    rounds of the pipeline are carried out by this process. It runs until Ctrl-C.

    * `headrace up`
    * `headrace --catalog ./data up --port 8480 --no-spark`
    """
    return asyncio.run(_up(options, node, spark=spark))


async def _up(options: Options, node: NodeOptions, *, spark: bool) -> int:
    from headrace.node.filling import Fillers
    from headrace.node.serving import until_signal

    with node.listening() as listening:
        async with options.open_async(create=True, housekeeping=True) as hr:
            await hr.in_thread(_check_alone, hr)
            served = node.serving(hr, listening)
            lease = await hr.in_thread(_take, hr, served.address)
            await served.start()
            fillers = Fillers(hr.host, options.spark)
            child = _pipeline(options, hr) if spark and _has_spark() else None
            say(served, options, spark=child is not None)
            keeping = hr.host.spawn(_keep(hr, lease))
            number = await until_signal()
            keeping.cancel()
            if child is not None:
                child.terminate()
            await fillers.close()
            await served.stop()
            if child is not None:
                await hr.in_thread(_ended, child)
            await hr.in_thread(hr.log.catalog.leases.release, lease)
    return EXIT_INTERRUPTED if number == signal.SIGINT else 0


def _check_alone(hr: Headrace) -> None:
    held = hr.log.catalog.leases.get(UP)
    if held is not None:
        raise AlreadyUpError(
            f"headrace up runs on this catalog already: {held.owner}; headrace token link lets "
            "you in"
        )


def _take(hr: Headrace, address: str) -> Lease:
    owner = f"{address}, process {os.getpid()}"
    lease = hr.log.catalog.leases.acquire(UP, owner, LEASE_TTL_MS)
    if lease is None:
        _check_alone(hr)
        raise AlreadyUpError("headrace up has just been started on this catalog by somebody else")
    return lease


async def _keep(hr: Headrace, lease: Lease) -> None:
    """Hold the lease; a catalog that is away for a while does not end anything."""
    while True:
        await hr.host.sleep(RENEW_S)
        with suppress(HeadraceError):
            lease = await hr.in_thread(hr.log.catalog.leases.renew, lease, LEASE_TTL_MS)


def _has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def _pipeline(options: Options, hr: Headrace) -> subprocess.Popen[bytes]:
    """The pipeline in a process of its own, which ends with this one; what it says is in a file.

    Where the catalog is goes by the environment: an address may hold a password, and everybody on
    the machine sees the words of a command.
    """
    words = [sys.executable, "-m", "headrace", "pipeline"]
    if options.store is not None:
        words += ["--store", options.store]
    for each in options.store_option:
        words += ["--store-option", each]
    folder = getattr(hr.log.catalog, "folder", None)
    place = os.devnull if folder is None else Path(folder) / "pipeline.log"
    with open(place, "wb") as out:
        return subprocess.Popen(
            words,
            env=os.environ | {CATALOG_VARIABLE: options.place},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C is for this process, which ends it in order
            preexec_fn=_with_parent if sys.platform == "linux" else None,
        )


def _with_parent() -> None:
    """In the child: be told to end when the parent is gone, however it went."""
    _libc.prctl(_DEATH_SIGNAL, signal.SIGTERM)


def _ended(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(PIPELINE_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def say(served: Served, options: Options, *, spark: bool) -> None:
    """Six lines: where, the link to the console, what to type next."""
    if options.json:
        print_json(EverythingUp(address=served.address, link=served.link(), spark=spark))
        return
    rest = "Spark starts in the background; small rounds are done until then"
    tell(f"headrace is up on {shown_place(options.place)}")
    tell(f"console   {served.link()}   (once, within a minute)")
    tell(f"programs  {served.address}/api/v1 and {served.address}/metrics, with a token")
    tell(f"pipeline  {rest if spark else 'small rounds are done by this process, without Spark'}")
    tell("next      headrace stream create orders --subjects 'orders.>' --segments 4")
    tell(f"stop      Ctrl-C; another link to the console: {link_command(served.address)}")
