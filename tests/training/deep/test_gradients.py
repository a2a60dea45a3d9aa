"""Clipped sums of gradients, however they are taken."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.deep.modules import MODULES, made
from veracal.privacy import Automatic, Flat, GlobalAdapt, GlobalV1, GlobalV2
from veracal.training.deep.gradients.blocks import Block, cross_entropy
from veracal.training.deep.gradients.choosing import WAYS, engine_for, one_by_one
from veracal.training.deep.gradients.functional import Functional
from veracal.training.deep.gradients.ghost import Ghost
from veracal.training.deep.gradients.hooks import Hooks
from veracal.training.deep.layout import Layout

ENGINES = {"ghost": Ghost, "functional": Functional, "hooks": Hooks}
CLIPS = [
    Flat(0.5),
    Flat(1e3),
    Automatic(0.5),
    GlobalV1(0.5, 2.0),
    GlobalV2(2.0),
    GlobalAdapt(0.5, 1.0),
]
# torch's own attention has parameters that no layer multiplies by; Opacus has its own
# attention in its place, and looks layers up by their exact class.
UNABLE = {("ghost", "attention"), ("hooks", "attention"), ("hooks", "tied")}


def summed(engine, block, clip):
    """A clipped sum, and what came with it."""
    total = torch.zeros(engine.size, dtype=torch.float64)
    found = engine.add(block, clip, total)
    return total.numpy(), found


def expected(module, block, clip):
    """The same, from gradients that are taken one by one."""
    each = one_by_one(module, cross_entropy, block).numpy()
    norms = np.linalg.norm(each, axis=1)
    return clip.factors(norms) @ each, norms


ABLE = [(way, name) for way in ENGINES for name in MODULES if (way, name) not in UNABLE]


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
@pytest.mark.parametrize(("way", "name"), ABLE)
def test_sums_are_those_of_gradients_taken_one_by_one(way, name, clip):
    module, block = made(name)
    total, found = summed(ENGINES[way](module, cross_entropy), block, clip)
    truth, norms = expected(module, block, clip)
    np.testing.assert_allclose(found.norms, norms, rtol=2e-3)
    if not isinstance(clip, GlobalV1 | GlobalV2):  # which jump, where norms differ a little
        scale = clip.factors(norms) @ norms
        np.testing.assert_allclose(total, truth, atol=2e-3 * scale)
