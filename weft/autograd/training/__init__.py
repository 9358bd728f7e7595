"""What trains networks: optimisers, schedules of the rate, data in batches, metrics, and the loop."""
