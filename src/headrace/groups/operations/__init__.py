"""What people do to groups of every kind: seek, dead letters, find a key, and trim past them."""
