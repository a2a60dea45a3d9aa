"""An engine whose runs predict the second class with known probabilities."""

import numpy as np

from veracal.multiplicity.engines.base import AuditEngine, fingerprint


class KnownShares(AuditEngine):
    """Predicts the second class with a given probability for each individual."""

    name, kind, classes = "known shares", "probability", (0, 1)

    def __init__(self, shares, runs_per_call=7, fail_after=None):
        self.shares = np.asarray(shares, dtype=float)
        self.individuals, self.runs_per_call = len(self.shares), runs_per_call
        self.fail_after, self.runs_made = fail_after, 0

    def scores(self, count, streams):
        self.runs_made += count
        if self.fail_after is not None and self.runs_made > self.fail_after:
            raise RuntimeError("stopped on purpose")
        heads = streams.noise.uniform(size=(count, self.individuals)) < self.shares
        return np.where(heads, 0.9, 0.2)

    def settings(self):
        return {"engine": self.name, "shares": fingerprint(self.shares)}
