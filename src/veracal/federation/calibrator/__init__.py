"""The calibrator's side: who asks sources elsewhere, and remembers every word."""
