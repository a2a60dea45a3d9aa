"""The same recalibrators when the records live elsewhere, and whoever asks may be hostile."""
