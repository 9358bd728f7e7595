"""One file per command, named after it; each has a `command`."""
