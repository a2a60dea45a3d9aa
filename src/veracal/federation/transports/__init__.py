"""Transports of bytes between a coordinator and sources."""
