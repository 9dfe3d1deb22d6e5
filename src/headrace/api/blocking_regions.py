"""Blocking form of ``hr.regions``, for :mod:`headrace.sync`."""

from __future__ import annotations

from headrace.api.blocking import Blocking, mirror
from headrace.regions.service import Regions


class BlockingRegions(Blocking[Regions]):
    """Regions without ``await``; ``hr.regions`` of :mod:`headrace.sync`."""

    name = mirror(Regions.name)
    renew = mirror(Regions.renew)
    link = mirror(Regions.link)
    unlink = mirror(Regions.unlink)
    links = mirror(Regions.links)
    pause = mirror(Regions.pause)
    resume = mirror(Regions.resume)
    rejoin = mirror(Regions.rejoin)
    enable = mirror(Regions.enable)
    disable = mirror(Regions.disable)
    switch = mirror(Regions.switch)
    unsynced = mirror(Regions.unsynced)
    fail_over = mirror(Regions.fail_over)
    promote = mirror(Regions.promote)
    remove = mirror(Regions.remove)
    snapshot_now = mirror(Regions.snapshot_now)
    snapshots = mirror(Regions.snapshots)
    force_snapshots = mirror(Regions.force_snapshots)
    status = mirror(Regions.status)
    check = mirror(Regions.check)
