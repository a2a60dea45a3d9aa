"""A small artifact, and ways to corrupt it."""

import copy
import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from veracal.artifact import PrivateClassifier
from veracal.calibration import PrivateCalibratedClassifier
from veracal.data import Dataset, load
from veracal.data.builtin import SCHEMAS
from veracal.training import PrivateLogisticRegression


@cache
def _loaded(name: str) -> Dataset:
    return load(name)


@cache
def _fitted(name: str) -> PrivateCalibratedClassifier:
    inner = PrivateLogisticRegression(epsilon=None, noise_multiplier=1.0, epochs=5)
    return PrivateCalibratedClassifier(inner, delta=1e-5).fit_records(data(name))


def data(name: str = "breast-cancer") -> Dataset:
    """Records, read once."""
    return _loaded(name)


def fitted(name: str = "breast-cancer") -> PrivateCalibratedClassifier:
    """A calibrated classifier, trained once with secret noise."""
    return _fitted(name)


def classifier(name: str = "breast-cancer") -> PrivateClassifier:
    """A fresh copy of an artifact, which a test may change."""
    return copy.deepcopy(_saved(name))


@cache
def _saved(name: str) -> PrivateClassifier:
    return PrivateClassifier.of(fitted(name), schema=SCHEMAS[name], name=name)


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change model.json and update its hash, like a careful attacker."""
    path = folder / "model.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({**content, "sha256": hashlib.sha256(text).hexdigest()}))


def replaced(folder: Path, content: bytes, name: str = "model.safetensors") -> None:
    """Put other bytes in place of a file, with their hash in model.json."""
    (folder / name).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    changed(folder, lambda result: result["files"].update({name: entry}))
