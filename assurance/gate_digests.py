"""No hash of records that is shown, sent or used as a file name confirms a guess of them.

Whoever guesses the records computes every plain hash of them. Names in the cache of features
must therefore hang on a secret of the cache, and what an audit tells must hold none.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veracal.data import Dataset, load, split
from veracal.data.features import extract, extraction
from veracal.data.places import cache_secret
from veracal.multiplicity import audit, auditing
from veracal.training import OutputPerturbation

NAME = "digests"
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """The secret of a cache, and what an audit tells of its settings."""

    secret: Callable[[Path], bytes] = cache_secret
    shareable: Callable[[Settings], dict[str, Any]] = auditing._shareable


CORRECT = Subject()
MUTANTS: dict[str, Subject] = {
    "plain hashes as file names": Subject(secret=lambda folder: b""),
    "one secret for everybody": Subject(secret=lambda folder: bytes(32)),
    "audits show hashes of records": Subject(shareable=dict),
}


def run(subject: Subject, *, long: bool) -> str:
    """Guess the records, and look for what the guess would give."""
    with patched(subject), tempfile.TemporaryDirectory() as folder:
        data = load("wine")
        names = {kept(data, Path(folder, str(turn))) for turn in range(4)}
        assert len(names) == 4, "a name in the cache can be computed from the records"
        for turn in range(4):
            assert kept(data, Path(folder, str(turn))) in names, "nothing is found again"
        parts = split(load("breast-cancer"), (0.6, 0.0, 0.4), key="k")
        model = OutputPerturbation(2.0, norm=2.0, C=0.1)
        found = audit(model, parts.train, parts.test, runs=3, random_state=0)
        hashes = re.findall(r"[0-9a-f]{32,}", json.dumps(found.to_json()))
        assert not hashes, f"an audit shows {len(hashes)} hashes of records"
    return "4 caches, 1 audit, no hash to compare a guess with"


def kept(data: Dataset, folder: Path) -> str:
    """Name under which features of records are kept."""
    extract(data, Scaled(), cache=folder)
    (found,) = (folder / "features").iterdir()
    return found.name


@contextmanager
def patched(subject: Subject) -> Iterator[None]:
    """Put the subject in place."""
    before = extraction.cache_secret, auditing._shareable
    extraction.cache_secret, auditing._shareable = subject.secret, subject.shareable
    try:
        yield
    finally:
        extraction.cache_secret, auditing._shareable = before


class Scaled:
    """A network that scales its input."""

    name, dimension, block, norm = "scaled", 13, 64, None

    def check(self, X: Any, where: str) -> None:
        """Take anything."""

    def fingerprint(self) -> dict[str, str | int]:
        return {"scale": 2}

    def scorer(self, record: tuple[int, ...]) -> Any:
        return lambda rows: (2 * rows).astype(np.float32)
