"""A model, and hospitals with records scored by it: a whole federation in a folder."""

from pathlib import Path

import numpy as np

from veracal.accounting import Budget
from veracal.artifact import PrivateClassifier
from veracal.data import Scores
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.queries import KINDS
from veracal.federation.protocol.terms import model_hash
from veracal.federation.source.enrolling import Declaration, enroll
from veracal.federation.source.folder import create_source
from veracal.federation.source.serving import open_source
from veracal.workflow import Config, run
from veracal.workflow.config import DataConfig, PrivacyConfig

NAMES = ("North", "South", "West [red]")
LIST = """\
[coordinator]
name = "Heart study"
key = "coordinator.pem"
history = "study.history"
timeout = 20
{more}
[transport]
kind = "local"
"""


def model(folder: Path) -> Path:
    """A small private classifier with its report."""
    run(Config(DataConfig("breast-cancer"), PrivacyConfig(8.0)), folder)
    return folder


def scores(classes: int, n: int, seed: int) -> Scores:
    """Overconfident scores of a hospital's records."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Scores.from_logits(3 * logits, labels)


def federation(folder: Path, model: Path, n: int = 800, *, more: str = "", **changed) -> Path:
    """Three hospitals, and the list of them."""
    key = PrivateKey.new()
    folder.mkdir()
    key.save(folder / "coordinator.pem")
    text = LIST.format(more=more)
    for i, name in enumerate(NAMES):
        place = folder / f"source{i}"
        fields = {"epsilon": 20.0, "deadline": 1.0, "max_records": 2_000, **changed}
        plain = tuple(
            k for k, kind in KINDS.items() if not kind.gaussian or fields.get("delta")
        )
        create_source(place, name, Budget(fields["epsilon"], fields.get("delta", 0.0)))
        hash_ = model_hash(model)
        width = len(PrivateClassifier.load(model).classes_) if model.is_dir() else 3
        declared = Declaration(key.public, hash_, **{"kinds": plain, **fields})
        terms = enroll(place, scores(width, n, i), declared)
        content = (place / "enrolled" / terms.source / "terms").read_bytes()
        (folder / f"{i}.terms").write_bytes(content)
        text += f'\n[[sources]]\nterms = "{i}.terms"\nfolder = "source{i}"\n'
    (folder / "federation.toml").write_text(text)
    return folder / "federation.toml"


def server(folder: Path, i: int):
    """One hospital's server."""
    return open_source(folder / f"source{i}")
