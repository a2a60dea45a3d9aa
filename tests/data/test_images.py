"""Images arrive as the form declares them, or not at all."""

import io
import os
import re
import struct
import sys
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from veracal.data import load
from veracal.data.files import Limits
from veracal.data.images import ImageForm, load_images
from veracal.errors import DataError, LimitError, MissingExtraError, SchemaError

FORM = ImageForm(
    classes=("cat", "dog"),
    height=4,
    width=6,
    patterns=(r"(?P<part>train|test)/(?P<label>\w+)/(?P<unit>\d+)_\d+\.(png|jpg)",),
    aliases={"kitten": "cat"},
)


def encoded(array, format="PNG"):
    """Bytes of an image file."""
    file = io.BytesIO()
    Image.fromarray(array).save(file, format)
    return file.getvalue()


def make_image(seed, shape=(4, 6, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


PICTURES = {
    "train/dog/7_1.png": make_image(0),
    "train/cat/9_1.png": make_image(1),
    "train/kitten/7_2.png": make_image(2),
    "test/cat/3_1.png": make_image(3),
}
FILES = {name: encoded(array) for name, array in PICTURES.items()}


@pytest.fixture(params=["folder", "zip"])
def store(request, tmp_path):
    """A function that writes files into a folder or a zip archive, and returns its path."""

    def write(files):
        root = tmp_path / "pets"
        if request.param == "folder":
            for name, data in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            return root
        with zipfile.ZipFile(tmp_path / "pets.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.mkdir("train")
            for name, data in files.items():
                archive.writestr(name, data)
        return tmp_path / "pets.zip"

    return write


def test_images_come_sorted_with_labels_and_units(store):
    data = load_images(store(FILES), replace(FORM, size=4))

    names = sorted(FILES)
    np.testing.assert_array_equal(data.X, [PICTURES[name] for name in names])
    assert data.X.dtype == np.uint8
    assert data.labels.tolist() == ["cat", "cat", "dog", "cat"]
    assert data.units.tolist() == ["3", "9", "7", "7"]
    assert (data.size, data.name.startswith("pets")) == (4, True)


TOML = """format = 1
[images]
classes = ["cat", "dog"]
height = 4
width = 6
patterns = ['(?P<part>train|test)/(?P<label>[a-z]+)/(?P<unit>[0-9]+)_[0-9]+.png']
size = 4
name = "pets"
[images.aliases]
kitten = "cat"
"""


def test_a_form_may_be_a_toml_file(store, tmp_path):
    (tmp_path / "pets.toml").write_text(TOML)
    data = load(store(FILES), schema=tmp_path / "pets.toml")
    assert data.labels.tolist() == ["cat", "cat", "dog", "cat"]
    assert (data.size, data.name, data.units.tolist()) == (4, "pets", ["3", "9", "7", "7"])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("height", "heigth", "images: expected only classes.*Did you mean 'height'"),
        ("height = 4\n", "", "images: expected 'height' to be declared"),
        ("patterns = ['", "patterns = '", "TOML"),
        ("size = 4", "ignore = '.*'", r"images: ignore: expected a list, found '\.\*'"),
        (
            "[images]",
            "size = 4\n[images]",
            r"expected only a table \[images\], found also 'size'",
        ),
        ("[images.aliases]\nkitten =", "aliases =", "images: aliases: expected a table"),
        ("format = 1", "format = 2", "expected format = 1"),
        ("height = 4", "height = 'x'", "images: expected valid settings"),
        ("height = 4", "height = 4\nresize = 3", "images: expected"),
    ],
)
def test_a_toml_file_with_another_form_is_refused(tmp_path, before, after, message):
    assert before in TOML
    (tmp_path / "pets.toml").write_text(TOML.replace(before, after))
    with pytest.raises(SchemaError, match=message):
        load(tmp_path, schema=tmp_path / "pets.toml")


def test_one_part_is_loaded(store):
    path = store(FILES)

    names = sorted(name for name in FILES if name.startswith("train"))
    np.testing.assert_array_equal(
        load_images(path, FORM, part="train").X, [PICTURES[name] for name in names]
    )
    with pytest.raises(DataError, match="no image of part 'val'"):
        load_images(path, FORM, part="val")


def test_images_of_one_class_are_refused_in_a_part_too(store):
    with pytest.raises(
        DataError, match="pets.*: expected records of at least two classes.*'cat'"
    ):
        load_images(store(FILES), FORM, part="test")


def test_groups_come_from_the_pattern(store):
    form = replace(
        FORM,
        patterns=(r"(?P<where>train|test)/(?P<label>\w+)/\d+_\d+\.png",),
        groups={"where": ("test", "train")},
    )

    data = load_images(store(FILES), form)

    assert data.groups["where"].codes.tolist() == [0, 1, 1, 1]
    assert data.units is None
    with pytest.raises(
        DataError,
        match=r"train/cat/9_1\.png: where: expected one of 'test', 'val', found 'train'",
    ):
        load_images(store(FILES), replace(form, groups={"where": ("test", "val")}))


def test_progress_counts_the_images(store):
    calls = []

    load_images(store(FILES), FORM, progress=lambda done, total: calls.append((done, total)))

    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_hidden_files_are_ignored(store):
    clutter = [".DS_Store", "train/.hidden", "__MACOSX/train/x.png", "train/cat/Thumbs.db"]

    assert len(load_images(store(FILES | dict.fromkeys(clutter, b"x")), FORM)) == 4


def test_any_other_file_must_match_a_pattern(store):
    with pytest.raises(DataError, match=r"train/cat/notes\.txt: expected a file that one of"):
        load_images(store(FILES | {"train/cat/notes.txt": b"x"}), FORM)


def test_the_whole_path_must_match(store):
    with pytest.raises(DataError, match=r"old/train/cat/1_1\.png"):
        load_images(store(FILES | {"old/train/cat/1_1.png": FILES["test/cat/3_1.png"]}), FORM)


def test_labels_must_be_declared(store):
    with pytest.raises(
        DataError, match=r"train/kitten/7_2\.png: label: expected one of .*'kitten'"
    ):
        load_images(store(FILES), replace(FORM, aliases={}))


def test_every_image_has_a_unit(store):
    form = replace(FORM, patterns=(r"(?P<label>\w+)/(?:(?P<unit>\d+)_)?\d+\.png",))

    with pytest.raises(DataError, match=r"dog/2\.png: expected a unit in its name"):
        load_images(
            store({f"{n}.png": encoded(make_image(0)) for n in ("cat/1_1", "dog/2")}), form
        )


def test_an_empty_unit_is_none(store):
    form = replace(FORM, patterns=(r"(?P<label>\w+)/(?P<unit>\d*)_\d+\.png",))

    with pytest.raises(
        DataError, match=r"dog/_2\.png: expected a unit in its name, found none"
    ):
        load_images(
            store({f"{n}.png": encoded(make_image(0)) for n in ("cat/1_1", "dog/_2")}), form
        )


# ------------------------------------------------------------------ lists


def test_lists_select_files(store):
    path = store(FILES | {"train/horse/1_1.png": FILES["test/cat/3_1.png"]})
    only = {"train/dog/7_1.png", "test/cat/3_1.png"}

    assert load_images(path, FORM, only=only).units.tolist() == ["3", "7"]
    with pytest.raises(DataError, match=r"found no 'test/cat/3_1\.png'"):
        load_images(path, FORM, only=only, part="train")


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ({"train/dog/8_1.png"}, r"expected all listed files, found no 'train/dog/8_1\.png'"),
        ({"../secret.png"}, "expected all listed files"),
        (set(), "no image at all"),
    ],
)
def test_bad_lists_are_refused(store, only, message):
    with pytest.raises(DataError, match=message):
        load_images(store(FILES), FORM, only=only)


def test_two_files_of_one_listed_name_are_refused(store):
    form = replace(FORM, patterns=(r"\w+/(?P<listed>(?P<label>\w+)/\d+)\.png",))
    files = {f"{part}/cat/1.png": FILES["test/cat/3_1.png"] for part in ("a", "b")}

    with pytest.raises(DataError, match=r"b/cat/1\.png: expected 'cat/1' once"):
        load_images(store(files), form, only={"cat/1"})


# ------------------------------------------------------------------ decoding


def one(store, data, **changes):
    """Load an image, twice: once as a cat, once as a dog."""
    files = {f"train/{label}/1_1.jpg": data for label in ("cat", "dog")}
    return load_images(store(files), replace(FORM, **changes)).X[0]


def test_grey_is_luma(store):
    color = make_image(5)

    gray = one(store, encoded(color), mode="gray")

    assert gray.shape == (4, 6)
    luma = color @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(gray, luma, atol=1)


def test_grey_images_become_color_by_repetition(store):
    gray = make_image(5, (4, 6))

    np.testing.assert_array_equal(one(store, encoded(gray)), np.repeat(gray[..., None], 3, 2))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "CMYK"])
def test_common_modes_are_converted(store, mode):
    file = io.BytesIO()
    image = Image.fromarray(np.full((4, 6, 3), 255, np.uint8)).convert(mode)
    image.save(file, "JPEG" if mode == "CMYK" else "PNG")

    assert (one(store, file.getvalue()) == 255).all()


def test_palettes_with_transparency_are_converted(store):
    file = io.BytesIO()
    image = Image.fromarray(np.full((4, 6, 3), 255, np.uint8)).convert("P")
    image.save(file, "PNG", transparency=bytes(range(256)))

    assert (one(store, file.getvalue()) == 255).all()


def png_of_depth(depth, kind, channels):
    """A PNG file of 4 × 6 pixels with so many bits a channel."""
    rows = b"".join(b"\0" + b"\x12\x34" * (6 * channels * depth // 16) for _ in range(4))
    return png_of_size(6, 4, depth=depth, kind=kind, data=rows)


@pytest.mark.parametrize(("kind", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_deep_images_are_refused(store, kind, channels):
    """16 bits of gray, color, and both with transparency, which Pillow would cut to 8."""
    assert one(store, png_of_depth(8, kind, channels)).shape == (4, 6, 3)
    with pytest.raises(DataError, match=r"8 bits per channel, .*Convert it to 8 bits"):
        one(store, png_of_depth(16, kind, channels))


def test_deep_images_of_other_formats_are_refused(store):
    """A TIFF file of one row of 16-bit color, as simple as they come."""
    tags = [(256, 1), (257, 1), (258, 200), (259, 1), (262, 2), (273, 210), (277, 3), (279, 6)]
    entries = b"".join(
        struct.pack("<HHII", tag, 3, 3 if tag == 258 else 1, value) for tag, value in tags
    )
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0)
    tiff = head.ljust(200, b"\0") + struct.pack("<3H", 16, 16, 16)
    tiff = tiff.ljust(210, b"\0") + struct.pack("<3H", 300, 301, 302)

    with pytest.raises(DataError, match="8 bits per channel, found .* of mode RGB"):
        one(store, tiff, height=1, width=1, formats=("TIFF",))


def test_other_sizes_are_refused_unless_declared(store):
    with pytest.raises(DataError, match="4 × 6 pixels, as declared, found 8 × 12"):
        one(store, encoded(make_image(0, (8, 12, 3))))


def test_stretching_scales_each_side_on_its_own(store):
    square = make_image(0, (12, 12, 3))
    scaled = Image.fromarray(square).resize((6, 4), Image.Resampling.BILINEAR)

    image = one(store, encoded(square), resize="stretch")

    np.testing.assert_array_equal(image, np.asarray(scaled))


def test_cropping_is_scaling_and_then_cutting_both_ends_alike(store):
    """12 × 30 pixels become 4 × 10; the middle six columns stay."""
    wide = make_image(0, (12, 30, 3))
    scaled = np.asarray(Image.fromarray(wide).resize((10, 4), Image.Resampling.BILINEAR))

    np.testing.assert_array_equal(one(store, encoded(wide), resize="crop"), scaled[:, 2:8])
    tall = np.ascontiguousarray(wide.transpose(1, 0, 2))
    image = one(store, encoded(tall), height=6, width=4, resize="crop")
    np.testing.assert_allclose(image, scaled[:, 2:8].transpose(1, 0, 2), atol=1)


def test_an_image_smaller_than_declared_is_enlarged(store):
    assert (one(store, encoded(np.full((1, 1, 3), 7, np.uint8)), resize="crop") == 7).all()


# ------------------------------------------------------------------ hostile images

PNG = FILES["test/cat/3_1.png"]


def png_of_size(width, height, *, depth=8, kind=2, data=b"\0" * 100):
    """A PNG file that announces a size, by default with no pixels to speak of."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data))
            + kind
            + data
            + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">2I5B", width, height, depth, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"hello",
            "expected a complete JPEG or PNG image, found another format",
        ),
        (PNG[:40], "expected a complete .* image"),
        (PNG[:-40], "expected a complete PNG image, found damage"),
        (
            encoded(make_image(0, (64, 64, 3)), "JPEG")[:-600],
            "expected a complete JPEG image, found damage",
        ),
        (png_of_size(6, 40), "expected a complete PNG image, found damage"),
        (encoded(make_image(0), "BMP"), "expected a complete JPEG or PNG image"),
        (encoded(make_image(0), "GIF"), "expected a complete JPEG or PNG image"),
    ],
    ids=["text", "cut head", "cut png", "cut jpeg", "few pixels", "bmp", "gif"],
)
def test_broken_and_other_images_are_refused(store, data, message):
    with pytest.raises(DataError, match=r"train/cat/1_1\.jpg: " + message):
        one(store, data)


def test_an_empty_image_is_refused(store):
    with pytest.raises(DataError, match=r"an empty file|a broken file"):
        one(store, b"")


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(store, side):
    with pytest.raises(
        LimitError, match=r"Pillow's limit on pixels, found Image size \(\d+ pix"
    ):
        one(store, png_of_size(side, side))


def test_declared_limits_bind_before_decoding(store):
    path = store({"train/cat/1_1.jpg": png_of_size(1000, 1000)})

    with pytest.raises(LimitError, match=r"1_1\.jpg: expected at most 3,999,999 memory bytes"):
        load_images(path, FORM, limits=Limits(memory_bytes=3_999_999))


def test_a_file_that_would_not_fit_in_memory_is_not_read(store, rng):
    path = store({"train/cat/1_1.jpg": PNG + rng.bytes(20_000), "train/dog/1_1.jpg": PNG})

    assert len(load_images(path, FORM)) == 2
    with pytest.raises(LimitError, match="at most 10,000 memory bytes"):
        load_images(path, FORM, limits=Limits(memory_bytes=10_000))


def test_limits_on_memory_rows_and_members_hold(store):
    path = store(FILES)

    load_images(path, FORM, limits=Limits(memory_bytes=4 * 4 * 6 * 3, rows=4, members=5))
    with pytest.raises(LimitError, match="at most 287 memory bytes"):
        load_images(path, FORM, limits=Limits(memory_bytes=287))
    with pytest.raises(LimitError, match="at most 3 rows"):
        load_images(path, FORM, limits=Limits(rows=3))
    with pytest.raises(LimitError, match="at most 3 members"):
        load_images(path, FORM, limits=Limits(members=3))
    with pytest.raises(LimitError, match="at most 50 file bytes"):
        load_images(path, FORM, limits=Limits(file_bytes=50))


def test_whatever_byte_breaks_the_error_is_ours(store, rng):
    data = encoded(make_image(0), "JPEG")
    refused = 0
    for place in rng.choice(len(data), 150, replace=False):
        broken = bytearray(data)
        broken[place] ^= int(rng.integers(1, 256))
        try:
            one(store, bytes(broken))
        except DataError:
            refused += 1

    assert refused > 10


# ------------------------------------------------------------------ hostile folders and zips


def zipped(tmp_path, *members):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return tmp_path / "a.zip"


@pytest.mark.parametrize("name", ["../train/cat/1_1.png", "/train/cat/1_1.png"])
def test_traversal_in_a_zip_is_refused(tmp_path, name):
    with pytest.raises(DataError, match="a file that one of the form's patterns matches"):
        load_images(zipped(tmp_path, (name, PNG)), FORM)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_in_a_zip_is_refused(tmp_path):
    path = zipped(tmp_path, ("train/cat/1_1.png", PNG), ("train/cat/1_1.png", PNG))
    with pytest.raises(DataError, match="a name that occurs twice"):
        load_images(path, FORM)


def test_a_zip_bomb_is_refused(tmp_path):
    path = zipped(tmp_path, ("train/cat/1_1.png", b"\0" * 2**24))
    with pytest.raises(LimitError, match="at most 1,048,576 memory bytes"):
        load_images(path, FORM, limits=Limits(memory_bytes=2**20))


def test_what_is_neither_folder_nor_zip_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(DataError, match="an undamaged zip archive"):
        load_images(tmp_path / "a.txt", FORM)
    with pytest.raises(DataError, match="nothing at that path"):
        load_images(tmp_path / "gone", FORM)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image at all"):
        load_images(tmp_path / "empty", FORM)


@pytest.fixture
def linked(tmp_path):
    """A folder with one image, and an image outside of it."""
    inner, outer = tmp_path / "pets" / "train" / "cat", tmp_path / "private" / "cat"
    for folder in (inner, outer):
        folder.mkdir(parents=True)
        (folder / "1_1.png").write_bytes(PNG)
    return inner.parent.parent, outer


def test_a_link_to_a_file_outside_is_refused(linked):
    pets, outer = linked
    (pets / "train/cat/2_1.png").symlink_to(outer / "1_1.png")

    with pytest.raises(DataError, match=r"2_1\.png: .*leads outside"):
        load_images(pets, FORM)


def test_a_link_to_a_file_inside_is_followed(linked):
    pets, _ = linked
    (pets / "train/dog").mkdir()
    (pets / "train/dog/2_1.png").symlink_to(pets / "train/cat/1_1.png")

    assert len(load_images(pets, FORM)) == 2


@pytest.mark.may_skip
def test_a_name_that_is_no_text_is_refused(linked):
    pets, _ = linked
    broken = os.fsencode(pets) + b"/train/cat/\xff_1.png"
    try:
        os.link(pets / "train/cat/1_1.png", broken)
    except OSError:
        pytest.skip("this file system wants names in UTF-8")
    form = replace(FORM, patterns=(r"(?P<part>train)/(?P<label>\w+)/(?P<unit>[^_]+)_\d\.png",))

    with pytest.raises(DataError, match=r"cat/\\xff_1\.png: expected a name in UTF-8"):
        load_images(pets, form)
    ignoring = replace(form, ignore=(r".*\udcff.*",))
    with pytest.raises(DataError, match="at least two classes"):  # nothing else is wrong
        load_images(pets, ignoring)


def test_a_link_to_a_folder_is_refused(linked):
    pets, outer = linked
    (pets / "train/dog").symlink_to(outer)
    with pytest.raises(DataError, match="leads outside"):
        load_images(pets, FORM)
    (pets / "train/dog").unlink()
    (pets / "train/dog").symlink_to(pets / "train")
    with pytest.raises(DataError, match="a link to one"):
        load_images(pets, FORM)


def test_a_broken_link_is_refused(linked):
    pets, _ = linked
    (pets / "train/cat/2_1.png").symlink_to(pets / "gone.png")

    with pytest.raises(DataError, match="nothing at that path"):
        load_images(pets, FORM)


def test_a_missing_pillow_is_named_with_its_extra(linked, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)

    with pytest.raises(MissingExtraError, match=re.escape("veracal[images]")):
        load_images(linked[0], FORM)


# ------------------------------------------------------------------ forms


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patterns": ()}, "a group named label"),
        ({"patterns": (r"(?P<unit>.*)",)}, "a group named label"),
        ({"patterns": (r"(?P<label>a)", r"(?P<label>b)(?P<unit>c)")}, "the same groups in all"),
        ({"patterns": (r"(?P<label>a",)}, "regular expressions"),
        ({"ignore": ("[",)}, "regular expressions"),
        ({"patterns": (r"(?P<label>a)(?P<place>b)",)}, r"the groups \[\] in each pattern"),
        ({"groups": {"place": ("x",)}}, r"the groups \['place'\] in each pattern"),
        ({"aliases": {"pup": "wolf"}}, "declared classes, found 'wolf'"),
        ({"aliases": {"dog": "cat"}}, "not classes themselves, found 'dog'"),
        ({"classes": ("cat",)}, "at least two different labels"),
    ],
)
def test_forms_that_contradict_themselves_are_refused(changes, message):
    with pytest.raises((SchemaError, DataError), match=message):
        replace(FORM, **changes)


@pytest.mark.parametrize("changes", [{"height": 0}, {"mode": "grey"}, {"resize": "pad"}])
def test_settings_of_a_form_are_checked(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(FORM, **changes)
