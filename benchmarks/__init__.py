"""Veracal compared with its peers, one question per file."""
