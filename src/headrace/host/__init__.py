"""What a running program gives its parts: the log, commits, timers."""
