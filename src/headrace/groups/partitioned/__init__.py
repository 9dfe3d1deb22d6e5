"""Partitioned groups: an administrator decides, key to partition to member.

``config`` holds the records and their rules, ``changes`` how they may change, ``distribution`` who
gets which partition, ``names`` what is derived from a group's name.  ``pins`` are the rules that
the catalog applies in its transactions; ``membership`` is the instance of a member that a runtime
drives with the events and effects of ``messages``; ``status`` is what an administrator sees.
"""
