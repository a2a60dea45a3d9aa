"""Logits are computed once, and incomplete or other cached logits are not used."""

import numpy as np
import pytest

from benchmarks.shift import logits as module
from benchmarks.shift.__main__ import parser, selected_settings
from benchmarks.shift.corruptions import CLEAN, CORRUPTIONS, EXTRA
from benchmarks.shift.logits import (
    NETWORKS,
    Setting,
    choosing,
    fill,
    keep,
    logits,
    measuring,
    read_cache,
)

FOG = Setting("resnet20", "fog", 5)


@pytest.fixture
def answered(tmp_path, monkeypatch, rng):
    """A separate cache, three images, and a network that records its calls."""
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path))
    images = rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    asked = []

    def answer(built, pictures):
        asked.append(built)
        return pictures.reshape(3, -1)[:, :10].astype(np.float32)

    monkeypatch.setattr(module, "load_test_images", lambda: (images, np.array([1, 0, 2])))
    monkeypatch.setattr(module, "_built", lambda name: name)
    monkeypatch.setattr(module, "logits_of", answer)
    return asked


def test_logits_are_computed_once(answered):
    first = logits("resnet20", "fog", 5)
    second = logits("resnet20", "fog", 5)
    assert answered == ["resnet20"]
    assert first[0].dtype == np.float32 and first[1].tolist() == [1, 0, 2]
    assert all((one == two).all() for one, two in zip(first, second, strict=True))
    assert (logits("resnet20")[0] != first[0]).any()  # clean images differ


@pytest.mark.parametrize("harm", ["cut", "flipped", "emptied", "another's"])
def test_a_harmed_file_is_computed_anew(answered, harm):
    scores, _ = logits("resnet20", "fog", 5)
    whole = FOG.place.read_bytes()
    if harm == "another's":
        logits("resnet20", "fog", 4)
        harmed = Setting("resnet20", "fog", 4).place.read_bytes()
    else:
        flipped = whole[:-1] + bytes([whole[-1] ^ 1])
        harmed = {"cut": whole[:-8], "flipped": flipped, "emptied": b""}[harm]
    FOG.place.write_bytes(harmed)
    assert read_cache(FOG) is None
    asked = len(answered)
    again, _ = logits("resnet20", "fog", 5)
    assert len(answered) == asked + 1 and (again == scores).all()
    found = read_cache(FOG)
    assert found is not None and (found[0] == scores).all()  # restored


def test_a_changed_definition_is_computed_anew(answered, monkeypatch):
    logits("resnet20", "contrast", 5)
    logits("resnet20", "fog", 5)
    module.definition.cache_clear()
    other = {**CORRUPTIONS, "contrast": CORRUPTIONS["brightness"]}
    monkeypatch.setattr("benchmarks.shift.corruptions.CORRUPTIONS", other)
    assert read_cache(Setting("resnet20", "contrast", 5)) is None
    assert read_cache(FOG) is not None
    module.definition.cache_clear()


def test_filling_resumes(answered, capsys):
    settings = [FOG, Setting("resnet20"), Setting("resnet32", "snow", 5)]
    logits("resnet20")
    answered.clear()
    fill(settings)
    assert answered == ["resnet20", "resnet32"]
    said = capsys.readouterr()
    assert said.out == "" and "3/3" in said.err
    answered.clear()
    fill(settings)
    assert answered == []


def test_a_file_appears_whole_or_not_at_all(answered, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("benchmarks.shift.weights.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        keep(FOG, np.zeros((3, 10), np.float32), np.zeros(3, np.int64))
    assert list(FOG.place.parent.iterdir()) == []


def test_the_table_and_the_choice_share_nothing():
    assert len(measuring()) == len(NETWORKS) * 16 == 64
    assert len(choosing()) == 4 * 3 + 8
    assert not set(measuring()) & set(choosing())
    assert not {setting.corruption for setting in measuring()} & set(EXTRA)
    assert all(setting.corruption != CLEAN for setting in choosing())


@pytest.mark.parametrize(
    "wrong",
    [("resnet18",), ("resnet20", "rain", 1), ("resnet20", "fog", 0), ("resnet20", CLEAN, 1)],
)
def test_there_are_no_other_settings(wrong):
    with pytest.raises(AssertionError):
        Setting(*wrong)


def test_what_is_typed_is_what_is_wanted():
    typed = parser().parse_args(["logits", "--networks", "resnet32", "--severity", "3"])
    found = selected_settings(typed.networks, typed.severity, typed.choosing)
    assert {setting.network for setting in found} == {"resnet32"}
    assert {setting.severity for setting in found} == {0, 3} and len(found) == 16
    everything = selected_settings(list(NETWORKS), 5, with_choosing=True)
    assert len(everything) == 84 and everything[0] == Setting("resnet20")


@pytest.mark.long
def test_published_accuracy(data_folder):
    """On clean images; He et al. and the weights' authors print errors of 8.27 % and less."""
    data_folder("resnet_cifar10_weights")
    scores, labels = logits("resnet20")
    assert scores.shape == (10_000, 10) and np.bincount(labels).tolist() == [1_000] * 10
    assert (scores.argmax(axis=1) == labels).mean() == pytest.approx(0.9173, abs=0.0005)
