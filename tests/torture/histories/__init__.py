"""Histories: what every process of a round asked and was told, held against the log.

``python -m tests.torture.histories --rounds 100`` runs rounds of a few seconds each.  Publishers
write in every way there is, sessions of a shared group or instances of static members consume, and
an administrator splits, merges, compacts, trims, sweeps and has members step down.  All of them are
killed (SIGKILL) and frozen (SIGSTOP) at random, and a share of all their calls is cancelled after
0 to 50 ms.  Each process writes down every call before and after it, with the machine's monotonic
time.  The parts:

- ``records``   what is written down, on files that outlive their process
- ``calls``     calls that are given up at random
- ``publisher``, ``consumer``, ``administrator``   the processes
- ``round``     starts, kills, freezes and restarts them, then reads the log back
- ``checker``   the pure judgement
"""
