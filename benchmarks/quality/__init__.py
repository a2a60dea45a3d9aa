"""What private models are worth, on real data."""
