"""Torture of the durable log: real processes that are killed, and an account of every event.

``python -m tests.torture`` runs several writers on one catalog, kills them with SIGKILL at random
moments while segments are split and merged and readers follow, and then looks at what the log
holds.  The parts:

- ``ledger``   what the writers said, on files that outlive them
- ``writer``   a process that appends in every way there is
- ``dying``    the exact places at which a process may be told to kill itself
- ``scaler``   a process that splits, merges and retiles
- ``follower`` a process that follows the streams and checks order as it goes
- ``child``    one such process and its output
- ``ordeal``   starts, kills, pauses and restarts all of these
- ``audit``    a fresh process that reads the whole log back
- ``account``  the pure judgement: ledger against log
"""
