"""Shared groups at work: the cores with catalog, network and clock."""
