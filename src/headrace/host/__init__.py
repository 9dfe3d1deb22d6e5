"""What a running program gives its parts: the way to the disk, and what the event loop may do."""
