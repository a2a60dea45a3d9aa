"""An engine of which everything is known: each person has a share of their own."""

import numpy as np

from veracal.multiplicity.engines.base import AuditEngine, fingerprint


class Coins(AuditEngine):
    """Runs that decide for the second class with each person's own probability."""

    name, kind, classes = "coins", "probability", (0, 1)

    def __init__(self, shares, together=7, tired_after=None):
        self.shares = np.asarray(shares, dtype=float)
        self.people, self.together = len(self.shares), together
        self.tired_after, self.made = tired_after, 0

    def scores(self, count, streams):
        self.made += count
        if self.tired_after is not None and self.made > self.tired_after:
            raise RuntimeError("tired")
        heads = streams.noise.uniform(size=(count, self.people)) < self.shares
        return np.where(heads, 0.9, 0.2)

    def settings(self):
        return {"engine": self.name, "shares": fingerprint(self.shares)}
