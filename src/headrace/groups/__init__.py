"""Groups: members that share a stream's events.

``delivery`` and ``ranges`` are common to every kind of group; ``partitioned`` and ``shared``
are the kinds.  All of them are pure cores: no I/O, no clock, no randomness of their own.
"""
