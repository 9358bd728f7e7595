"""Pictures in requests."""
