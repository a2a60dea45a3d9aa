"""Ways to sum clipped per-example gradients of a network."""
