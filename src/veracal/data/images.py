"""Encoded images as arrays of bytes.

Files of a folder or of a zip archive, by their relative names.

Images in folders and zip archives, labelled by their names.
"""

import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

import numpy as np

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Frozen, Progress
from veracal.data.dataset import Dataset, Group, check_learnable
from veracal.data.files import DEFAULT_LIMITS, Limits, inside, no_surprises, open_zip, opened
from veracal.data.labels import TEXT, Label, check_classes
from veracal.data.row_digests import as_digests, digest_of_texts
from veracal.data.texts import alias_problem, coded, read_names
from veracal.errors import DataError, LimitError, SchemaError

Mode = Literal["grey", "color"]
Resize = Literal["none", "stretch", "crop"]
# 8 bits a channel. Deeper images would lose their meaning in a conversion to bytes.
_KNOWN_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@contextmanager
def guarded_pillow() -> Iterator[Any]:
    """Lend Pillow's ``Image`` module while what it only warns of, a bomb, is an error."""
    pillow = extra("PIL.Image", "images")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on metadata that we do not use
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        yield pillow


def open_image(
    data: bytes, where: str, pillow: Any, *, formats: Sequence[str], limits: Limits
) -> Any:
    """Open an encoded image and check its size, without decoding it.

    Parameters
    ----------
    data : bytes
        The file.
    where : str
        What to call it in an error.
    pillow : module
        From :func:`guarded_pillow`.
    formats : sequence of str
        Pillow's names of the formats to try; no other decoder sees the bytes.
    limits : Limits
        Decoded, the image must fit ``memory_bytes``; Pillow's own limit holds as well.
    """
    try:
        image = pillow.open(io.BytesIO(data), formats=formats)
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as cause:
        raise LimitError(
            where,
            "an image within Pillow's limit on pixels",
            str(cause).partition(",")[0],
            "Nothing was decoded. Make the image smaller with a program you trust.",
        ) from cause
    except Exception as cause:  # decoders fail in many ways on hostile bytes
        raise _broken(where, formats, "another or a broken file") from cause
    limits.check("memory_bytes", image.width * image.height * 4, where)
    if image.mode not in _KNOWN_MODES or _is_deep(image, data):
        raise DataError(
            where,
            "8 bits a channel",
            f"more in an image of mode {image.mode}",
            "Convert it to 8 bits by a rule that suits what it shows.",
        )
    return image


def pixels(
    image: Any, where: str, *, mode: Mode, height: int, width: int, resize: Resize
) -> Array:
    """Decode an opened image into bytes of shape (height, width) or (height, width, 3).

    Grey is the luma of ITU-R 601. ``stretch`` scales each side on its own; ``crop`` scales
    until the image covers the declared size, then cuts equally at both ends. Both average
    bilinearly. Transparency and the orientation noted by a camera are ignored.
    """
    try:
        image = image.convert("L" if mode == "grey" else "RGB")
    except Exception as cause:  # decoders fail in many ways on hostile bytes
        raise _broken(where, (image.format or "encoded",), f"damage ({cause})") from cause
    if image.size != (width, height):
        image = _fitted(image, where, height, width, resize)
    return np.asarray(image, np.uint8)


def _is_deep(image: Any, data: bytes) -> bool:
    """Tell whether there are 16 bits a channel where Pillow, in silence, would keep 8.

    A PNG opens with its header, whose depth is byte 24 of the file; for other formats the
    decoder that Pillow chose says it.
    """
    return (image.format == "PNG" and data[24] > 8) or ";16" in repr(image.tile)


def _fitted(image: Any, where: str, height: int, width: int, resize: Resize) -> Any:
    """Bring an image to the declared size."""
    if resize == "none":
        raise DataError(
            where,
            f"{height} × {width} pixels, as declared",
            f"{image.height} × {image.width}",
            "Declare the real size, or resize='stretch' or 'crop'.",
        )
    box = None
    if resize == "crop":
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
        box = (left, top, left + width * scale, top + height * scale)
    bilinear = extra("PIL.Image", "images").Resampling.BILINEAR
    return image.resize((width, height), bilinear, box=box)


def _broken(where: str, formats: Sequence[str], found: str) -> DataError:
    """Error for bytes that are not a whole image of a declared format."""
    return DataError(
        where,
        f"a whole {' or '.join(formats)} image",
        found,
        "Fetch the file again, or remove it.",
    )


class ImageFiles(Protocol):
    """ImageFiles that can be listed and read."""

    @property
    def names(self) -> tuple[str, ...]:
        """Relative names with forward slashes, sorted."""

    def read(self, name: str) -> bytes:
        """Bytes of one of them."""


@contextmanager
def open_files(path: Path, limits: Limits) -> Iterator[ImageFiles]:
    """Open a folder or a zip archive."""
    with no_surprises(path):
        is_folder = path.is_dir()
    if is_folder:
        yield Folder(path, limits)
        return
    with open_zip(path, limits) as archive:
        yield archive


class Folder:
    """ImageFiles below a folder, none of which is a link out of it."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder, self._limits = folder, limits
        self.names = tuple(sorted(self._walk()))

    def read(self, name: str) -> bytes:
        """Read one file."""
        with opened(inside(self._folder, Path(name)), self._limits) as file:
            self._limits.check("memory_bytes", os.fstat(file.fileno()).st_size, name)
            return file.read()

    def _walk(self) -> Iterator[str]:
        """Yield relative names, within the limit on their number."""
        count = 0
        with no_surprises(self._folder):
            for parent, folders, files in os.walk(self._folder, onerror=_refuse):
                for folder in folders:
                    self._check_link(Path(parent, folder))
                for file in files:
                    count += 1
                    self._limits.check("members", count, self._folder)
                    yield Path(parent, file).relative_to(self._folder).as_posix()

    def _check_link(self, folder: Path) -> None:
        """Refuse a link to a folder: outside it is not ours, inside it may go in circles."""
        if not folder.is_symlink():
            return
        inside(self._folder, folder.relative_to(self._folder))
        raise DataError(
            str(folder), "a folder", "a link to one", "Move the folder itself to this place."
        )


def _refuse(error: OSError) -> NoReturn:
    """Stop at a folder that cannot be listed, instead of passing over it."""
    raise error


_SPECIAL = frozenset({"label", "part", "unit", "listed"})
HIDDEN = (r"(.*/)?\.(?!\./).*", r"(.*/)?__MACOSX/.*", r"(.*/)?(Thumbs\.db|desktop\.ini)")


@dataclass(frozen=True)
class ImageForm:
    r"""What is publicly known about a collection of images.

    Attributes
    ----------
    classes : tuple of str or int
        Declared labels.
    height, width : int
        Size of the arrays.
    patterns : tuple of str
        Regular expressions; the first that matches the whole relative path of a file, with
        forward slashes, tells what it is. Each has a group ``(?P<label>…)``. Optional
        groups, the same in all patterns: ``part`` (such as train or test), ``unit`` (whom
        the image shows), ``listed`` (how lists of files name it), and declared groups.
    mode : 'grey' or 'color'
    aliases : mapping of str to class
        Labels as the paths write them, where that is not the name of the class.
    groups : mapping of str to tuple of values
        Groups of the patterns that divide the records, and the values each may have.
    resize : 'none', 'stretch' or 'crop'
        What to do with an image of another size: refuse it, scale it to the declared
        size, or scale it to cover that size and cut off the rest.
    ignore : tuple of str
        Patterns of files that are no records. Any other file must match a pattern.
    formats : tuple of str
        Pillow's names of the formats that may occur.
    """

    classes: tuple[Label, ...]
    height: int
    width: int
    patterns: tuple[str, ...]
    mode: Mode = "color"
    aliases: Mapping[str, Label] = field(default_factory=dict)
    groups: Mapping[str, tuple[Label, ...]] = field(default_factory=dict)
    resize: Resize = "none"
    ignore: tuple[str, ...] = HIDDEN
    formats: tuple[str, ...] = ("JPEG", "PNG")

    def __post_init__(self) -> None:
        _checks.whole(height=self.height, width=self.width)
        _checks.one_of(("grey", "color"), mode=self.mode)
        _checks.one_of(("none", "stretch", "crop"), resize=self.resize)
        object.__setattr__(self, "classes", check_classes(self.classes, "image form"))
        object.__setattr__(self, "aliases", Frozen(self.aliases))
        object.__setattr__(self, "groups", Frozen(self.groups))
        if problem := self._problem():
            raise SchemaError("image form", *problem, "Correct the form.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (self.height, self.width, *((3,) if self.mode == "color" else ()))

    def _problem(self) -> tuple[str, str] | None:
        """Say what was expected and found where the form contradicts itself."""
        if problem := alias_problem(self.aliases, self.classes):
            return problem
        names = []
        for pattern in (*self.patterns, *self.ignore):
            try:
                names.append(frozenset(re.compile(pattern).groupindex))
            except re.error as cause:
                return "regular expressions", f"{pattern!r} ({cause})"
        kinds = set(names[: len(self.patterns)])
        if len(kinds) != 1 or "label" not in next(iter(kinds)):
            return "patterns with a group named label, and the same groups in all", str(
                [sorted(kind) for kind in kinds]
            )
        if (found := next(iter(kinds)) - _SPECIAL) != set(self.groups):
            return f"the groups {sorted(self.groups)} in each pattern", str(sorted(found))
        return None


def load_images(
    path: str | Path,
    form: ImageForm,
    *,
    part: str | None = None,
    lists: str | Path | Sequence[str | Path] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    size: int | None = None,
    name: str | None = None,
    row_digests: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Load images of one size.

    Parameters
    ----------
    path : path
        A folder, or a zip archive, which is not unpacked on disk.
    form : ImageForm
        What is known about it; ``veracal.data.sets.images`` has some ready-made.
    part : str, optional
        Load only files whose pattern found this part. None: all.
    lists : path or paths, optional
        Text files that name, line by line, the files to load. None: all.
    limits : Limits
        What is refused as too large before it is decoded.
    size : int, optional
        Declared number of rows.
    name : str, optional
        What to call the data set; by default as the path.
    row_digests : bool
        Whether to identify each image: by the bytes of its file, and by the label, groups
        and unit in its path as they are written.
    progress : callable, optional
        Called with the number of images decoded, and how many there are.

    Returns
    -------
    Dataset
        Bytes of shape (n, height, width) or (n, height, width, 3), sorted by path.

    Raises
    ------
    DataError
        Naming the first file that is not as the form says. Nothing is returned then.
    """
    path = Path(path)
    with open_files(path, limits) as files:
        found = _matched(files.names, form, path)
        found = _chosen(found, part, _listed(lists, limits), path)
        codes = _codes(found, form, path)
        X, digests = _decoded(files, found, form, path, limits, progress, row_digests)
    dataset = Dataset(
        X,
        codes,
        form.classes,
        groups={
            group: _group(found, group, values, path) for group, values in form.groups.items()
        },
        units=_texts(found, "unit", path) if _has(form, "unit") else None,
        row_digests=digests,
        encoded=True,
        size=size,
        name=path.name if name is None else name,
    )
    check_learnable(dataset, path)
    return dataset


Found = dict[str, re.Match[str]]


def _has(form: ImageForm, group: str) -> bool:
    """Tell whether the patterns of a form have a group of this name."""
    return group in re.compile(form.patterns[0]).groupindex


def _matched(names: Iterable[str], form: ImageForm, path: Path) -> Found:
    """Match every file that is not ignored; one that matches nothing is an error."""
    patterns = [re.compile(pattern) for pattern in form.patterns]
    ignore = [re.compile(pattern) for pattern in form.ignore]
    found = {}
    for name in names:
        if any(pattern.fullmatch(name) for pattern in ignore):
            continue
        _check_name(name, path)
        match = next(filter(None, (pattern.fullmatch(name) for pattern in patterns)), None)
        if match is None:
            raise DataError(
                f"{path}: {name}",
                "a file that one of the form's patterns matches",
                "one that none does",
                "Add a pattern, or one to ignore, by dataclasses.replace(form, …).",
            )
        found[name] = match
    return found


def _check_name(name: str, path: Path) -> None:
    """Refuse a name that is not text: nobody could be told apart, or told of, by it."""
    try:
        name.encode()
    except UnicodeEncodeError as cause:
        shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise DataError(
            f"{path}: {shown}", "a name in UTF-8", "other bytes", "Rename the file."
        ) from cause


def _listed(
    lists: str | Path | Sequence[str | Path] | None, limits: Limits
) -> dict[str, str] | None:
    """Return the files that lists name, and which list names each."""
    if lists is None:
        return None
    wanted: dict[str, str] = {}
    for path in [lists] if isinstance(lists, str | Path) else lists:
        for name in read_names(path, limits):
            entry = name.removeprefix("/")
            if entry in wanted:
                raise DataError(
                    str(path), "each file once in all lists", repr(entry), "Remove the line."
                )
            wanted[entry] = str(path)
    return wanted


def _chosen(found: Found, part: str | None, listed: dict[str, str] | None, path: Path) -> Found:
    """Keep the files of a part, and those that are listed."""
    if part is not None:
        found = {n: m for n, m in found.items() if m.groupdict().get("part") == part}
    if listed is not None:
        found = _named(found, listed, path)
    if not found:
        chosen = "no image at all" if part is None else f"no image of part {part!r}"
        raise DataError(str(path), "images that the form describes", chosen, "Check the path.")
    return found


def _named(found: Found, listed: dict[str, str], path: Path) -> Found:
    """Keep the files that are listed, each of which must be there once."""
    names: dict[str, str] = {}
    for name, match in found.items():
        entry = match.groupdict().get("listed") or name
        if entry in names and entry in listed:
            raise DataError(
                f"{path}: {name}", f"{entry!r} once", "a second one", "Remove one of the files."
            )
        names[entry] = name
    for entry, where in listed.items():
        if entry not in names:
            raise DataError(
                where, f"files of {path}", repr(entry), "Complete the folder or the archive."
            )
    return {name: found[name] for name in sorted(names[entry] for entry in listed)}


def _codes(found: Found, form: ImageForm, path: Path) -> Array:
    """Return the position of each label among the classes."""
    known = coded(form.aliases, form.classes)
    for name, match in found.items():
        if match["label"] not in known:
            raise DataError(
                f"{path}: {name}",
                f"one of {len(known)} declared labels, such as {next(iter(known))!r}",
                repr(match["label"]),
                "Declare the class, or remove the file.",
            )
    return np.array([known[match["label"]] for match in found.values()], np.int64)


def _group(found: Found, group: str, values: Sequence[Label], path: Path) -> Group:
    """Return the attribute that the patterns found in a group."""
    texts, known = _texts(found, group, path), {str(value) for value in values}
    for name, text in zip(found, texts.tolist(), strict=True):
        if text not in known:
            listed = ", ".join(map(repr, values[:8])) + ", …" * (len(values) > 8)
            raise DataError(
                f"{path}: {name}: {group}",
                f"one of {listed}",
                repr(text),
                "Declare the value, or remove the file.",
            )
    return Group.from_values(texts, values)


def _texts(found: Found, group: str, path: Path) -> Array:
    """Return what the patterns found in a group, for each file."""
    for name, match in found.items():
        if not match[group]:
            raise DataError(
                f"{path}: {name}", f"a {group} in its name", "none", "Correct the pattern."
            )
    return np.array([match[group] for match in found.values()], TEXT)


def _decoded(
    files: ImageFiles,
    found: Found,
    form: ImageForm,
    path: Path,
    limits: Limits,
    progress: Progress | None,
    row_digests: bool,
) -> tuple[Array, Array | None]:
    """Decode files into one array, whose size is checked first, and identify them if asked."""
    names, digests = tuple(found), []
    shape = (len(names), *form.shape)
    limits.check("rows", len(names), path)
    limits.check("memory_bytes", int(np.prod(shape, dtype=object)), path)
    X = np.empty(shape, np.uint8)
    with guarded_pillow() as pillow:
        for i, name in enumerate(names):
            where = f"{path}: {name}"
            data = files.read(name)
            if row_digests:
                digests.append(digest_of_texts(_written(found[name], form), data))
            image = open_image(data, where, pillow, formats=form.formats, limits=limits)
            X[i] = pixels(
                image,
                where,
                mode=form.mode,
                height=form.height,
                width=form.width,
                resize=form.resize,
            )
            if progress:
                progress(i + 1, len(names))
    return X, as_digests(digests) if row_digests else None


def _written(match: re.Match[str], form: ImageForm) -> list[str]:
    """What the path of an image says of it, apart from its part and its own name."""
    known = match.groupdict()
    return [known.get(group) or "" for group in ("label", "unit", *form.groups)]
