"""What programs call: the log, its groups and sessions, with and without ``await``."""
