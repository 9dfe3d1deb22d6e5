"""What a running program gives its parts: clock, timers, tasks, writes, news, and their end."""

from typing import TYPE_CHECKING

from headrace.loading import later

if TYPE_CHECKING:
    from headrace.host.clock import Clock
    from headrace.host.host import Host
    from headrace.host.services import Stage
    from headrace.host.tasks import Tasks
    from headrace.host.timers import Timer

__all__ = ["Clock", "Host", "Stage", "Tasks", "Timer"]

__getattr__ = later(
    __name__,
    {
        "headrace.host.clock": ("Clock",),
        "headrace.host.host": ("Host",),
        "headrace.host.services": ("Stage",),
        "headrace.host.tasks": ("Tasks",),
        "headrace.host.timers": ("Timer",),
    },
)
