"""One file that is charged before any record is read."""
