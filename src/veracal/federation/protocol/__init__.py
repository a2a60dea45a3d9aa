"""What goes between a calibrator and a source: bytes that both can check to the last."""
