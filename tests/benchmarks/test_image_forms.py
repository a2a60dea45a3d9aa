"""Published collections of images load, real ones with their published counts."""

import io
import zipfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from benchmarks.datasets.images import CHEST_XRAY, food101, read_list, read_names, sun397
from veracal.data.images import load_images
from veracal.errors import DataError


def jpeg(shade, size=(40, 30), format="JPEG"):
    """Bytes of an image of one shade."""
    file = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(file, format)
    return file.getvalue()


def write(root, files):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


SUN = {
    "a/abbey/sun_aaalbzqrimafwbiv.jpg": jpeg(10),
    "a/apse/indoor/sun_aaqhazmhbhefhakh.jpg": jpeg(20, format="PNG"),  # some are not JPEG
    "y/youth_hostel/sun_aabxkcszsoovdxfy.jpg": jpeg(30),
    "ClassName.txt": "/a/abbey\n/a/apse/indoor\n/y/youth_hostel\n",
}


@pytest.mark.parametrize("top", ["", "SUN397/"])
def test_sun397_loads_in_its_form(tmp_path, top):
    root = write(tmp_path / "sun", {top + name: data for name, data in SUN.items()})
    classes = read_names(root / f"{top}ClassName.txt")

    data = load_images(root, sun397(classes, height=8, width=8))

    assert data.X.shape == (3, 8, 8, 3)
    assert data.labels.tolist() == ["/a/abbey", "/a/apse/indoor", "/y/youth_hostel"]
    assert data.X[:, 0, 0, 0].tolist() == [10, 20, 30]


def test_partitions_of_sun397_select_files(tmp_path):
    root = write(tmp_path / "SUN397", SUN)
    partition = tmp_path / "Training_01.txt"
    partition.write_text(
        "/y/youth_hostel/sun_aabxkcszsoovdxfy.jpg\r\n/a/abbey/sun_aaalbzqrimafwbiv.jpg\r\n"
    )
    form = sun397(["/a/abbey", "/y/youth_hostel"])

    data = load_images(root, form, only=read_list(partition))

    assert data.X.shape == (2, 224, 224, 3)
    assert data.labels.tolist() == ["/a/abbey", "/y/youth_hostel"]
    with pytest.raises(DataError, match="'a/apse/indoor'"):
        load_images(root, form)


def test_classes_of_sun397_may_go_without_their_first_slash():
    assert sun397(["a/abbey", "/a/apse"]).aliases == {"a/apse": "/a/apse"}


FOOD = {
    "images/apple_pie/1005649.jpg": jpeg(10),
    "images/apple_pie/1011328.jpg": jpeg(20),
    "images/waffles/1004515.jpg": jpeg(30),
    "meta/classes.txt": "apple_pie\nwaffles\n",
    "meta/train.txt": "waffles/1004515\napple_pie/1011328\n",
    "meta/test.txt": "apple_pie/1005649\nwaffles/1004515\n",
    "meta/train.json": "{}",
    "README.txt": "read me",
    "license_agreement.txt": "agree",
}


@pytest.mark.parametrize("top", ["", "food-101/"])
def test_food101_loads_in_its_form(tmp_path, top):
    root = write(tmp_path / "food", {top + name: data for name, data in FOOD.items()})
    form = food101(read_names(root / f"{top}meta/classes.txt"), height=8, width=12)

    train = load_images(root, form, only=read_list(root / f"{top}meta/train.txt"))
    test = load_images(root, form, only=read_list(root / f"{top}meta/test.txt"))

    assert train.X.shape == (2, 8, 12, 3)
    assert train.labels.tolist() == ["apple_pie", "waffles"]
    assert train.X[:, 0, 0, 0].tolist() == [20, 30]
    assert test.labels.tolist() == ["apple_pie", "waffles"]


XRAYS = {
    "train/NORMAL/IM-0115-0001.jpeg": (0, "IM-0115"),
    "train/NORMAL/NORMAL2-IM-0115-0001-0002.jpg": (0, "NORMAL2-IM-0115"),
    "train/PNEUMONIA/person1_bacteria_2.jpeg": (1, "person1"),
    "train/PNEUMONIA/person447_virus_921_1.jpg": (2, "person447"),
    "val/NORMAL/NORMAL2-IM-1427-0001.jpeg": (0, "NORMAL2-IM-1427"),
    "val/PNEUMONIA/person1_virus_6.jpeg": (2, "person1"),
}


@pytest.mark.parametrize("top", ["", "chest_xray/"])
def test_names_of_chest_xrays_are_understood(tmp_path, top):
    with zipfile.ZipFile(tmp_path / "xrays.zip", "w") as archive:
        for name in XRAYS:
            archive.writestr(top + name, jpeg(50, size=(90, 70)))
        archive.writestr(top + "train/.DS_Store", b"x")

    data = load_images(tmp_path / "xrays.zip", CHEST_XRAY)

    assert data.X.shape == (6, 128, 128)
    expected = [XRAYS[name] for name in sorted(XRAYS)]
    assert list(zip(data.y.tolist(), data.units.tolist(), strict=True)) == expected
    assert len(load_images(tmp_path / "xrays.zip", CHEST_XRAY, part="val")) == 2


@pytest.mark.parametrize(
    ("part", "counts", "most"),
    [("train", (1_341, 2_530, 1_345), 30), ("test", (234, 242, 148), 9)],
)
def test_real_chest_xrays_have_their_published_counts(data_folder, part, counts, most):
    data = load_images(data_folder("chestxray128/chestxray128.zip"), CHEST_XRAY, part=part)

    assert np.bincount(data.y, minlength=3).tolist() == list(counts)
    assert data.X.shape[1:] == (128, 128)
    assert 0.3 < data.X.mean() / 255 < 0.7
    assert max(Counter(data.units.tolist()).values()) == most
