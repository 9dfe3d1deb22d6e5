"""Reader groups at work: the core connected to catalog, clock and consumers."""
