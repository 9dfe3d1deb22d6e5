"""What a running program gives its parts: clock, timers, tasks, writes, news, and their end."""

from headrace.host.clock import Clock
from headrace.host.host import Host
from headrace.host.services import Stage
from headrace.host.tasks import Tasks
from headrace.host.timers import Timer

__all__ = ["Clock", "Host", "Stage", "Tasks", "Timer"]
