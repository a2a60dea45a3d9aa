"""Flower as a carrier of bytes: its SuperLink in the middle, our own code at both ends."""
