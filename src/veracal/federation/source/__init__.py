"""The institution's side of a federation."""
