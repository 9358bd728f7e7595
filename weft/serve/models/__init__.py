"""The models of a server: loading, unloading, and running them."""
