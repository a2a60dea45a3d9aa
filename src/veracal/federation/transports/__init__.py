"""Ways for bytes to get from a calibrator to sources and back; none of them is believed."""
