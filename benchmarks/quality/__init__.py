"""Quality of private models on real data."""
