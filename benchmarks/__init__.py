"""Veracal beside its peers, one question per file."""
