"""Flower as a transport."""
