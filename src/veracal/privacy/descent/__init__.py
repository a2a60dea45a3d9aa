"""Noisy gradient descent: who takes part, how gradients are bounded, how weights follow."""
