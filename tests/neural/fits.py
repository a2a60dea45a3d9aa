"""A small network, records for it, and helpers to observe its fits."""

import numpy as np
import torch
from torch import nn

from veracal.mechanisms import Step
from veracal.neural import PrivateNetwork

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] + 0.3 * RNG.normal(size=60) > 0).astype(int)
SETTINGS = {"epsilon": None, "noise_multiplier": 1.0, "classes": [0, 1], "size": 60}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def model(module=None, **changed):
    settings = {**SETTINGS, "steps": 4, "random_state": 0, "gradients": "ghost", **changed}
    return PrivateNetwork(network() if module is None else module, **settings)


class RecordedSteps:
    """Records the steps of a fit."""

    def __init__(self):
        self.steps = list[Step]()

    def __call__(self, model, step):
        self.steps.append(step)


class Touchy(nn.Module):
    """Raises an error that names the value, or returns NaN, for some values."""

    def __init__(self, quiet=False):
        super().__init__()
        self.quiet = quiet
        self.line, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        hidden = self.line(x)
        if self.quiet:
            return self.head(hidden) * (50 - x.abs().amax(1, keepdim=True)).sqrt()
        assert float(x.abs().max()) < 50, f"value {float(x.abs().max())}"
        return self.head(hidden)
