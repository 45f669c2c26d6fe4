"""Side by side with other implementations: ratios measured in one process, never across runs."""
