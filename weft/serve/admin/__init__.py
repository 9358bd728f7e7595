"""The server's own routes: whether it lives, what it measures, the page, adapters."""
