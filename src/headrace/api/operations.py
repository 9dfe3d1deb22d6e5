"""What people do to groups of every kind: ``hr.seek``, dead letters, ``hr.find_key``."""

from __future__ import annotations

from collections.abc import Collection

from headrace.groups.operations import seek as seeking
from headrace.groups.operations.seek import Sought, To
from headrace.host import Host


class Operations:
    """The part of an open log that steers groups; a name is ``orders/billing`` and the like."""

    host: Host

    async def seek(
        self,
        group: str,
        to: To,
        *,
        units: Collection[str | int] | None = None,
        dry_run: bool = False,
    ) -> Sought:
        """Put a group elsewhere: ``"earliest"``, ``"latest"``, a time, or {segment: offset}.

        It takes the units from their owners, so nothing is acked across it; running members go on
        at the new place.  ``units`` are those that are meant, if not all.  With ``dry_run`` it
        only tells how many events would come again and how many would be skipped.
        """
        self.host.check()
        return await self.host.in_thread(
            seeking.seek, self.host.log, group, to, units=units, dry_run=dry_run
        )
