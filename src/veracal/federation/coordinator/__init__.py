"""The coordinator's side of a federation."""
