"""Logits of networks on corrupted test images of CIFAR-10, cached between runs.

One file holds the logits of all 10,000 pictures under one corruption at one severity. It says
what it was made from; a file that is not whole, or was made from other weights or by another
definition of the corruption, counts as missing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from benchmarks.datasets import load
from benchmarks.shift.corruptions import CLEAN, CORRUPTIONS, EXTRA, MEASURED, corrupted
from benchmarks.shift.resnet import DEPTHS, ResNet, logits_of, network
from benchmarks.shift.weights import folder, published, weights, write_whole
from veracal._types import Array, Floats, Ints

NETWORKS = tuple(DEPTHS)
SEVEREST = 5
_SAMPLE = 8  # pictures of noise that stand for a definition


@dataclass(frozen=True)
class Setting:
    """A network and what its pictures went through.

    Attributes
    ----------
    network : str
        One of ``NETWORKS``.
    corruption : str
        One of ``CORRUPTIONS``, or ``CLEAN``.
    severity : int
        From 1 to 5; 0 for clean pictures, and only for them.
    """

    network: str
    corruption: str = CLEAN
    severity: int = 0

    def __post_init__(self) -> None:
        assert self.network in NETWORKS, f"network: one of {NETWORKS}, not {self.network!r}"
        known = (CLEAN, *CORRUPTIONS)
        assert self.corruption in known, f"corruption: one of {known}, not {self.corruption!r}"
        clean = self.corruption == CLEAN
        assert self.severity in ([0] if clean else range(1, 6)), f"severity {self.severity}"

    @property
    def place(self) -> Path:
        """The file that holds its logits, or would."""
        change = CLEAN if self.corruption == CLEAN else f"{self.corruption}-{self.severity}"
        return folder() / f"logits-{self.network}-{change}.safetensors"

    @property
    def made_from(self) -> dict[str, str]:
        """Checksums of everything but the test pictures that logits depend on."""
        return {
            "weights": published(self.network).sha256,
            "definition": definition(self.corruption, self.severity),
        }


def measuring(severity: int = SEVEREST) -> list[Setting]:
    """Settings the published table is of: every network, clean and under 15 corruptions."""
    return [
        Setting(name, change, 0 if change == CLEAN else severity)
        for name in NETWORKS
        for change in (CLEAN, *MEASURED)
    ]


def choosing() -> list[Setting]:
    """Settings methods were chosen on; none of them is in the published table.

    ResNet-20 under the four extra corruptions at severities 2, 4 and 5, and under eight of
    the fifteen at severity 3.
    """
    others = (
        "brightness",
        "contrast",
        "defocus_blur",
        "fog",
        "gaussian_noise",
        "jpeg_compression",
        "motion_blur",
        "pixelate",
    )
    extra = [Setting(NETWORKS[0], change, each) for change in EXTRA for each in (2, 4, 5)]
    return extra + [Setting(NETWORKS[0], change, 3) for change in others]


def logits(name: str, corruption: str = CLEAN, severity: int = 0) -> tuple[Floats, Ints]:
    """Logits and labels of the test pictures, from the cache or computed now.

    Parameters
    ----------
    name : str
        One of ``NETWORKS``.
    corruption : str
        One of ``CORRUPTIONS``, or ``CLEAN``.
    severity : int
        From 1 to 5; 0 for clean pictures.

    Returns
    -------
    (array of float32 of shape (10000, 10), array of ints of shape (10000,))
    """
    setting = Setting(name, corruption, severity)
    found = read_cache(setting)
    if found is None:
        ((_, *found),) = computed([setting])
    scores, labels = found
    return scores, labels


def fill(settings: Sequence[Setting], *, threads: int = 1) -> None:
    """Compute what the cache lacks, with a bar on standard error."""
    torch.set_num_threads(threads)
    missing = [setting for setting in settings if read_cache(setting) is None]
    columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("logits", total=len(settings))
        bar.advance(task, len(settings) - len(missing))
        for setting, scores, labels in computed(missing):
            right = float((scores.argmax(axis=1) == labels).mean())
            bar.console.print(f"{setting.place.stem}: {right:.4f} right")
            bar.advance(task)


def computed(settings: Iterable[Setting]) -> Iterator[tuple[Setting, Floats, Ints]]:
    """Compute logits in the order given and keep each file as soon as it is done."""
    images, labels = load_test_images()
    for name, group in groupby(settings, key=lambda setting: setting.network):
        built = _built(name)
        for setting in group:
            changed = corrupted(images, setting.corruption, setting.severity)
            scores = logits_of(built, changed)
            keep(setting, scores, labels)
            yield setting, scores, labels


@cache
def load_test_images() -> tuple[Array, Ints]:
    """Test pictures of CIFAR-10 and their labels."""
    data = load("cifar10", part="test")
    return np.ascontiguousarray(data.X), np.asarray(data.y, np.int64)


@cache
def _built(name: str) -> ResNet:
    """A network, built once in a process."""
    return network(name, weights(name))


@cache
def definition(corruption: str, severity: int) -> str:
    """Checksum of what a corruption does to pictures of noise, which tells a changed one."""
    rng = np.random.default_rng(0)
    fine, coarse = rng.integers(0, 256, (2, _SAMPLE, 32, 32, 3), dtype=np.uint8)
    blocks = coarse[:, ::8, ::8].repeat(8, axis=1).repeat(8, axis=2)
    # A quarter of the bits are dropped: machines differ in the last ones.
    made = corrupted(np.concatenate([fine, blocks]), corruption, severity)
    return hashlib.sha256((made // 4).tobytes()).hexdigest()


def keep(setting: Setting, scores: Floats, labels: Ints) -> None:
    """Write the logits of a setting, whole or not at all."""
    arrays = {"logits": scores, "labels": labels}
    said = {**setting.made_from, "sha256": _digest(scores, labels)}
    write_whole(setting.place, save(arrays, said))


def read_cache(setting: Setting) -> tuple[Floats, Ints] | None:
    """Logits and labels from the cache; None where there are none, not these, or not whole."""
    try:
        with safe_open(setting.place, "np") as file:
            said = file.metadata() or {}
            scores, labels = file.get_tensor("logits"), file.get_tensor("labels")
    except (OSError, SafetensorError):
        return None
    wanted = {**setting.made_from, "sha256": _digest(scores, labels)}
    return (scores, labels) if said == wanted else None


def _digest(scores: Floats, labels: Ints) -> str:
    """SHA-256 of both arrays, with shapes and types."""
    total = hashlib.sha256()
    for array in (scores, labels):
        total.update(f"{array.dtype}|{array.shape}|".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
