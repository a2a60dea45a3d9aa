"""Randomness of runs: a stream of its own for each thing that chance decides."""

import secrets
from dataclasses import dataclass
from typing import Literal

import numpy as np

from veracal import _checks

Varied = Literal["noise", "noise and batches", "all"]
VARIED: tuple[Varied, ...] = ("noise", "noise and batches", "all")
_PURPOSES = ("initial", "batches", "noise")
_DRAWN_ANEW = {
    "noise": {"noise"},
    "noise and batches": {"noise", "batches"},
    "all": {"noise", "batches", "initial"},
}
_SHARED = 2**63  # the place of what all runs have in common; no run has this number


@dataclass(frozen=True, eq=False)
class Streams:
    """Generators of some runs, by what they decide.

    Attributes
    ----------
    initial, batches, noise : Generator
        Of the weights at the start, of who is in a batch, and of the noise.
    varied : {"noise", "noise and batches", "all"}
        What differs between runs. Whatever does not is drawn from a stream that begins at
        the same place for all of them.
    """

    initial: np.random.Generator
    batches: np.random.Generator
    noise: np.random.Generator
    varied: Varied


@dataclass(frozen=True)
class Seed:
    """Where the randomness of an audit comes from.

    Attributes
    ----------
    entropy : int
    varied : {"noise", "noise and batches", "all"}

    Notes
    -----
    An audit is internal: nothing that it draws protects anybody, so that its streams can be
    repeated by whoever knows the entropy. Fresh entropy comes from the operating system.
    """

    entropy: int
    varied: Varied = "all"

    def __post_init__(self) -> None:
        _checks.whole(least=0, entropy=self.entropy)
        _checks.one_of(VARIED, varied=self.varied)

    @classmethod
    def of(cls, random_state: int | None, varied: Varied = "all") -> "Seed":
        """Take a number, or draw one."""
        return cls(secrets.randbits(128) if random_state is None else random_state, varied)

    def streams(self, first: int) -> Streams:
        """Generators of the runs that begin at a number, the same whenever they are asked for.

        Parameters
        ----------
        first : int
            Number of the first of them, counted from 0.
        """
        _checks.whole(least=0, first=first)
        made = {
            purpose: np.random.default_rng(
                np.random.SeedSequence(
                    self.entropy,
                    spawn_key=(
                        place,
                        first if purpose in _DRAWN_ANEW[self.varied] else _SHARED,
                    ),
                )
            )
            for place, purpose in enumerate(_PURPOSES)
        }
        return Streams(**made, varied=self.varied)
