"""The log: streams of events in segments, on a catalog and a store."""
