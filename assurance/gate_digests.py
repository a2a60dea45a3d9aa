"""No hash of records that is shown, sent or used as a file name confirms a guess of them.

A party that guesses the records can compute every plain hash of them. File names in the cache
of features must therefore depend on a secret of the cache, and audits must contain no hash. Nor
may a plain hash of a table or of one of its rows be in an artifact, a report, a ledger, its
export or the partitions next to it; and since requests are hashed themselves, what a ledger
contains before its first answer must be the same for a table that differs in one cell.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from assurance import gate_data_ledger as tables
from veracal.data import Dataset, load, split
from veracal.data.files import cache_secret
from veracal.ledger import Ledger
from veracal.multiplicity import audit, auditing
from veracal.neural import extract
from veracal.neural import features as extraction
from veracal.training import OutputPerturbation
from veracal.workflow import run as fit
from veracal.workflow import running
from veracal.workflow.planning import RunPlan

NAME = "digests"
SECONDS = 8
Settings = Mapping[str, Any]
KINDS: tuple[tuple[str, Settings], ...] = (
    *((name, {}) for name in ("md5", "sha1", "sha256", "sha512", "blake2s", "sha3_256")),
    *(("blake2b", {"digest_size": size}) for size in (16, 20, 32, 64)),
)
BODY, TOLD = RunPlan.body, running.build_results


@dataclass(frozen=True)
class Subject:
    """The secret of a cache, the settings shown by an audit, and patches of a run."""

    secret: Callable[[Path], bytes] = cache_secret
    shareable: Callable[[Settings], dict[str, Any]] = auditing._shareable
    patches: tuple[tuple[str, object], ...] = ()


def table_hash(job: RunPlan) -> str:
    """A plain hash of the table of a run."""
    return hashlib.sha256(Path(job.config.data.source).read_bytes()).hexdigest()


def body_with_hash(job: RunPlan) -> bytes:
    """Tell a run from another by the bytes of its table, too."""
    assert BODY.fget is not None
    return bytes(BODY.fget(job)) + table_hash(job).encode()


def results_with_hash(job: RunPlan, *given: Any, **more: Any) -> Any:
    """Show the hash of the table of a model."""
    found = TOLD(job, *given, **more)
    return replace(found, versions={**found.versions, "table": table_hash(job)})


CORRECT = Subject()
MUTANTS: dict[str, Subject] = {
    "plain hashes as file names": Subject(secret=lambda folder: b""),
    "one secret for everybody": Subject(secret=lambda folder: bytes(32)),
    "audits show hashes of records": Subject(shareable=dict),
    "results show a hash of the table": Subject(
        patches=(("veracal.workflow.running.build_results", results_with_hash),)
    ),
    "requests hang on a hash of the table": Subject(
        patches=(("veracal.workflow.planning.RunPlan.body", property(body_with_hash)),)
    ),
}


def run(subject: Subject, *, long: bool) -> str:
    """Guess the records, and look for what the guess would give."""
    with patched(subject), tempfile.TemporaryDirectory() as folder:
        data = load("wine")
        names = {feature_file_name(data, Path(folder, str(turn))) for turn in range(4)}
        assert len(names) == 4, "a name in the cache can be computed from the records"
        for turn in range(4):
            assert feature_file_name(data, Path(folder, str(turn))) in names, (
                "nothing is found again"
            )
        parts = split(load("breast-cancer"), (0.6, 0.0, 0.4), key="k")
        model = OutputPerturbation(2.0, norm=2.0, C=0.1)
        found = audit(model, parts.train, parts.test, runs=3, random_state=0)
        hashes = re.findall(r"[0-9a-f]{32,}", json.dumps(found.to_json()))
        assert not hashes, f"an audit shows {len(hashes)} hashes of records"
    sought, searched = of_runs(subject)
    return (
        "4 caches, 1 audit, no hash to compare a guess with; "
        f"{sought:,} hashes of a table looked for in {searched:,} bytes of a run: none found"
    )


def of_runs(subject: Subject) -> tuple[int, int]:
    """Run on two tables that differ in a cell; look for plain hashes in all that is kept."""
    before: list[list[Settings]] = []
    for cell in ("7", "8"):
        with tables.table(tables.Subject(patches=subject.patches)) as folder:
            path = folder / "visits.csv"
            lines = path.read_text().splitlines()
            lines[9] = f"{cell},{lines[9].split(',', 1)[1]}"
            path.write_text("\n".join(lines))
            made = fit(tables.config(folder), folder / "out")
            told = Ledger(made.ledger.path).to_json(answers=True)
            first = [one for one in told["entries"] if one["index"] <= 3]
            before.append([{**one, "hash": "", "previous": ""} for one in first])
            files = [*(folder / "out").rglob("*"), *(folder / "ledgers").rglob("*")]
            texts = [one.read_bytes() for one in files if one.is_file()]
            names = [one.name.encode() for one in files]
            content = b"\n".join([*texts, *names, json.dumps(told).encode()])
            data = load(path, schema=folder / "visits.toml", row_digests=True)
            sought = plain(path.read_bytes(), *map(str.encode, lines[1:]))
            sought |= {bytes(one) for one in data.row_digests}
        found = [one for one in sought if one in content or one.hex().encode() in content]
        assert not found, f"a run keeps {len(found)} plain hashes of its table"
    assert before[0] == before[1], "requests of a run hang on the records"
    return len(sought), len(content)


def plain(*texts: bytes) -> set[bytes]:
    """Every plain hash of texts."""
    return {
        hashlib.new(name, text, **how).digest()
        if name != "blake2b"
        else hashlib.blake2b(text, **how).digest()
        for text in texts
        for name, how in KINDS
    }


def feature_file_name(data: Dataset, folder: Path) -> str:
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
