"""Torture of partitioned groups: member processes killed and frozen, and every event judged.

``python -m tests.torture --what groups`` runs static and elastic groups on SQLite and PostgreSQL.
Workers are killed with SIGKILL, or frozen with SIGSTOP for longer than their lease and woken
again, while members join and leave, mappings come and go and instances step down.  The parts:

- ``journal``  what feeder and workers saw, on files that outlive them
- ``feeder``   a process that publishes numbered events, key by key
- ``filler``   a process that fills the elastic group's work queue from the stream
- ``worker``   a process with an instance of a member in each group
- ``admin``    changes of membership and mappings, step-downs
- ``ordeal``   starts, kills, freezes, wakes and restarts all of these
- ``judge``    the pure judgement over all journals
"""
