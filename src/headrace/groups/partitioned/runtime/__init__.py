"""Partitioned groups at work: instances in a process, and their transactions."""
