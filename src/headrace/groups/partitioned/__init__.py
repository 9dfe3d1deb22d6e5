"""Partitioned groups: an administrator decides, key to partition to member."""
