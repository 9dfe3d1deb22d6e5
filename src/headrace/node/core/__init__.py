"""What of the node decides and computes without I/O."""
