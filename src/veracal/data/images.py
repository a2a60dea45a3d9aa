"""Images in folders and zip archives, decoded to one size and labeled by their names."""

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
from veracal.data.files import (
    DEFAULT_LIMITS,
    Limits,
    inside,
    open_file,
    open_zip,
    translate_os_errors,
)
from veracal.data.labels import TEXT, Label, check_classes
from veracal.data.row_digests import as_digests, digest_of_texts
from veracal.data.texts import alias_problem, class_codes, read_names
from veracal.errors import DataError, LimitError, SchemaError

Mode = Literal["grey", "color"]
Resize = Literal["none", "stretch", "crop"]
# 8 bits per channel. A conversion of deeper images to bytes would change their meaning.
_KNOWN_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@contextmanager
def guarded_pillow() -> Iterator[Any]:
    """Provide Pillow's ``Image`` module with its warning of decompression bombs as an error."""
    pillow = extra("PIL.Image", "images")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata that is not used
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
        Name of the file, for errors.
    pillow : module
        From :func:`guarded_pillow`.
    formats : sequence of str
        Pillow's names of the formats to try; no other decoder is used.
    limits : Limits
        The decoded image must fit ``memory_bytes``; Pillow's own limit applies as well.
    """
    try:
        image = pillow.open(io.BytesIO(data), formats=formats)
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as cause:
        raise LimitError(
            where,
            "an image within Pillow's limit on pixels",
            str(cause).partition(",")[0],
            "Nothing was decoded. Reduce the image with a program you trust.",
        ) from cause
    except Exception as cause:  # decoders raise many errors for broken bytes
        raise _broken(where, formats, "another format or a broken file") from cause
    limits.check("memory_bytes", image.width * image.height * 4, where)
    if image.mode not in _KNOWN_MODES or _is_deep(image, data):
        raise DataError(
            where,
            "8 bits per channel",
            f"more in an image of mode {image.mode}",
            "Convert it to 8 bits by a rule that suits its content.",
        )
    return image


def pixels(
    image: Any, where: str, *, mode: Mode, height: int, width: int, resize: Resize
) -> Array:
    """Decode an opened image into bytes of shape (height, width) or (height, width, 3).

    Grey is the luma of ITU-R 601. ``stretch`` scales each side on its own; ``crop`` scales
    until the image covers the declared size, then cuts equally at both ends. Both
    interpolate bilinearly. Transparency and the orientation tag of a camera are ignored.
    """
    try:
        image = image.convert("L" if mode == "grey" else "RGB")
    except Exception as cause:  # decoders raise many errors for broken bytes
        raise _broken(where, (image.format or "encoded",), f"damage ({cause})") from cause
    if image.size != (width, height):
        image = _resize(image, where, height, width, resize)
    return np.asarray(image, np.uint8)


def _is_deep(image: Any, data: bytes) -> bool:
    """Whether the image has 16 bits per channel, which Pillow would silently reduce to 8.

    The depth of a PNG is byte 24 of the file; for other formats Pillow's decoder states it.
    """
    return (image.format == "PNG" and data[24] > 8) or ";16" in repr(image.tile)


def _resize(image: Any, where: str, height: int, width: int, resize: Resize) -> Any:
    """Resize an image to the declared size."""
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


def _broken(where: str, formats: Sequence[str], problem: str) -> DataError:
    """Error for bytes that are not a complete image of a declared format."""
    return DataError(
        where,
        f"a complete {' or '.join(formats)} image",
        problem,
        "Copy the file again, or remove it.",
    )


class ImageFiles(Protocol):
    """Files that can be listed and read."""

    @property
    def names(self) -> tuple[str, ...]:
        """Relative names with forward slashes, sorted."""

    def read(self, name: str) -> bytes:
        """Bytes of one file."""


@contextmanager
def open_files(path: Path, limits: Limits) -> Iterator[ImageFiles]:
    """Open a folder or a zip archive."""
    with translate_os_errors(path):
        is_folder = path.is_dir()
    if is_folder:
        yield Folder(path, limits)
        return
    with open_zip(path, limits) as archive:
        yield archive


class Folder:
    """Files below a folder, without links that lead out of it."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder, self._limits = folder, limits
        self.names = tuple(sorted(self._walk()))

    def read(self, name: str) -> bytes:
        """Read one file."""
        with open_file(inside(self._folder, Path(name)), self._limits) as file:
            self._limits.check("memory_bytes", os.fstat(file.fileno()).st_size, name)
            return file.read()

    def _walk(self) -> Iterator[str]:
        """Yield relative names, within the limit on their number."""
        count = 0
        with translate_os_errors(self._folder):
            for parent, folders, files in os.walk(self._folder, onerror=_refuse):
                for folder in folders:
                    self._check_link(Path(parent, folder))
                for file in files:
                    count += 1
                    self._limits.check("members", count, self._folder)
                    yield Path(parent, file).relative_to(self._folder).as_posix()

    def _check_link(self, folder: Path) -> None:
        """Reject a link to a folder: it may lead outside, or in circles."""
        if not folder.is_symlink():
            return
        inside(self._folder, folder.relative_to(self._folder))
        raise DataError(
            str(folder), "a folder", "a link to one", "Move the folder itself here."
        )


def _refuse(error: OSError) -> NoReturn:
    """Raise for a folder that cannot be listed, instead of skipping it."""
    raise error


_SPECIAL = frozenset({"label", "part", "unit", "listed"})
HIDDEN = (r"(.*/)?\.(?!\./).*", r"(.*/)?__MACOSX/.*", r"(.*/)?(Thumbs\.db|desktop\.ini)")


@dataclass(frozen=True)
class ImageForm:
    r"""Public facts about a collection of images.

    Attributes
    ----------
    classes : tuple of str or int
        Declared labels.
    height, width : int
        Size of the arrays.
    patterns : tuple of str
        Regular expressions; the first that matches the whole relative path of a file, with
        forward slashes, describes it. Each has a group ``(?P<label>…)``. Optional groups, the
        same in all patterns, are ``part`` (such as train or test), ``unit`` (the individual
        in the image), ``listed`` (its name in lists of files), and declared groups.
    mode : 'grey' or 'color'
    aliases : mapping of str to class
        Labels in paths that differ from the name of the class.
    groups : mapping of str to tuple of values
        Groups of the patterns that divide the records, and their values.
    resize : 'none', 'stretch' or 'crop'
        Treatment of an image of another size: reject it, scale it to the declared size, or
        scale it to cover that size and crop the rest.
    ignore : tuple of str
        Patterns of files that are no records. Every other file must match a pattern.
    formats : tuple of str
        Pillow's names of the allowed formats.
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
        """Expected and found, if the form contradicts itself."""
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
        if (groups := next(iter(kinds)) - _SPECIAL) != set(self.groups):
            return f"the groups {sorted(self.groups)} in each pattern", str(sorted(groups))
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
        Classes, size and the patterns of paths.
    part : str, optional
        Load only files of this part. None: all.
    lists : path or paths, optional
        Text files that list the files to load, one a line. None: all.
    limits : Limits
        Bounds that are checked before an image is decoded.
    size : int, optional
        Declared number of rows.
    name : str, optional
        Name of the data set; by default that of the path.
    row_digests : bool
        Whether to compute a digest of each image: of the bytes of its file, and of the label,
        groups and unit in its path.
    progress : callable, optional
        Called with the number of decoded images and the total.

    Returns
    -------
    Dataset
        Bytes of shape (n, height, width) or (n, height, width, 3), sorted by path.

    Raises
    ------
    DataError
        At the first file that violates the form. No partial result is returned.
    """
    path = Path(path)
    has_units = "unit" in re.compile(form.patterns[0]).groupindex
    with open_files(path, limits) as files:
        matches = _match_names(files.names, form, path)
        matches = _select(matches, part, _read_lists(lists, limits), path)
        codes = _codes(matches, form, path)
        X, digests = _decode(files, matches, form, path, limits, progress, row_digests)
    dataset = Dataset(
        X,
        codes,
        form.classes,
        groups={
            group: _group(matches, group, values, path) for group, values in form.groups.items()
        },
        units=_texts(matches, "unit", path) if has_units else None,
        row_digests=digests,
        encoded=True,
        size=size,
        name=path.name if name is None else name,
    )
    check_learnable(dataset, path)
    return dataset


Matches = dict[str, re.Match[str]]  # by the name of the file


def _match_names(names: Iterable[str], form: ImageForm, path: Path) -> Matches:
    """Match every file that is not ignored; one that matches nothing is an error."""
    patterns = [re.compile(pattern) for pattern in form.patterns]
    ignore = [re.compile(pattern) for pattern in form.ignore]
    matches = {}
    for name in names:
        if any(pattern.fullmatch(name) for pattern in ignore):
            continue
        _check_name(name, path)
        match = next(filter(None, (pattern.fullmatch(name) for pattern in patterns)), None)
        if match is None:
            raise DataError(
                f"{path}: {name}",
                "a file that one of the form's patterns matches",
                "one that no pattern matches",
                "Add a pattern, or one to ignore, by dataclasses.replace(form, …).",
            )
        matches[name] = match
    return matches


def _check_name(name: str, path: Path) -> None:
    """Reject a name that is not text, since labels and ids are read from it."""
    try:
        name.encode()
    except UnicodeEncodeError as cause:
        escaped = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise DataError(
            f"{path}: {escaped}", "a name in UTF-8", "other bytes", "Rename the file."
        ) from cause


def _read_lists(
    lists: str | Path | Sequence[str | Path] | None, limits: Limits
) -> dict[str, str] | None:
    """Return the listed files, each with the list that names it."""
    if lists is None:
        return None
    listed: dict[str, str] = {}
    for path in [lists] if isinstance(lists, str | Path) else lists:
        for name in read_names(path, limits):
            entry = name.removeprefix("/")
            if entry in listed:
                raise DataError(
                    str(path), "each file once in all lists", repr(entry), "Remove the line."
                )
            listed[entry] = str(path)
    return listed


def _select(
    matches: Matches, part: str | None, listed: dict[str, str] | None, path: Path
) -> Matches:
    """Select the files of a part, and those that are listed."""
    if part is not None:
        matches = {n: m for n, m in matches.items() if m.groupdict().get("part") == part}
    if listed is not None:
        matches = _select_listed(matches, listed, path)
    if not matches:
        none = "no image at all" if part is None else f"no image of part {part!r}"
        raise DataError(str(path), "images that the form describes", none, "Check the path.")
    return matches


def _select_listed(matches: Matches, listed: dict[str, str], path: Path) -> Matches:
    """Select the listed files; each must exist exactly once."""
    names: dict[str, str] = {}
    for name, match in matches.items():
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
    return {name: matches[name] for name in sorted(names[entry] for entry in listed)}


def _codes(matches: Matches, form: ImageForm, path: Path) -> Array:
    """Return the index of each label among the classes."""
    known = class_codes(form.aliases, form.classes)
    for name, match in matches.items():
        if match["label"] not in known:
            raise DataError(
                f"{path}: {name}",
                f"one of {len(known)} declared labels, such as {next(iter(known))!r}",
                repr(match["label"]),
                "Declare the class, or remove the file.",
            )
    return np.array([known[match["label"]] for match in matches.values()], np.int64)


def _group(matches: Matches, group: str, values: Sequence[Label], path: Path) -> Group:
    """Return the attribute that a group of the patterns matched."""
    texts, known = _texts(matches, group, path), {str(value) for value in values}
    for name, text in zip(matches, texts.tolist(), strict=True):
        if text not in known:
            listed = ", ".join(map(repr, values[:8])) + ", …" * (len(values) > 8)
            raise DataError(
                f"{path}: {name}: {group}",
                f"one of {listed}",
                repr(text),
                "Declare the value, or remove the file.",
            )
    return Group.from_values(texts, values)


def _texts(matches: Matches, group: str, path: Path) -> Array:
    """Return the text that a group of the patterns matched, for each file."""
    for name, match in matches.items():
        if not match[group]:
            raise DataError(
                f"{path}: {name}", f"a {group} in its name", "none", "Correct the pattern."
            )
    return np.array([match[group] for match in matches.values()], TEXT)


def _decode(
    files: ImageFiles,
    matches: Matches,
    form: ImageForm,
    path: Path,
    limits: Limits,
    progress: Progress | None,
    row_digests: bool,
) -> tuple[Array, Array | None]:
    """Decode files into one array, whose size is checked first, with digests if requested."""
    names, digests = tuple(matches), []
    shape = (len(names), *form.shape)
    limits.check("rows", len(names), path)
    limits.check("memory_bytes", int(np.prod(shape, dtype=object)), path)
    X = np.empty(shape, np.uint8)
    with guarded_pillow() as pillow:
        for i, name in enumerate(names):
            where = f"{path}: {name}"
            data = files.read(name)
            if row_digests:
                known = matches[name].groupdict()
                texts = [known.get(group) or "" for group in ("label", "unit", *form.groups)]
                digests.append(digest_of_texts(texts, data))
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
