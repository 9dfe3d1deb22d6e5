"""Groups: members that share a stream's events.

``partitioned``, ``shared`` and ``readers`` are the kinds of groups: who owns what.  Each has a pure
core (no I/O, no clock, no randomness of its own) that decides, and the first two have a runtime
that connects it to the catalog, the clock and the network.  ``delivery`` (what may be handed out
next, a pure core too) and ``consumer`` (its runtime: fetch, hand out, store the answers) are common
to all that consume, and so are ``progress`` and ``ranges``, which say what was acked.
"""
