"""Images in folders and zip archives, decoded to one size and labeled by their names."""

import io
import math
import os
import re
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Frozen, Progress
from veracal.data.dataset import Dataset, Group, check_learnable
from veracal.data.files import (
    DEFAULT_LIMITS,
    Limits,
    construct_from_settings,
    expect_table,
    inside,
    open_file,
    translate_os_errors,
)
from veracal.data.row_digests import as_digests, digest_of_texts
from veracal.data.rows import TEXT, Label, check_classes, first_of
from veracal.data.schema import listed
from veracal.data.texts import alias_problem, class_codes
from veracal.errors import DataError, LimitError, SchemaError

Mode = Literal["gray", "color"]
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

    ``pillow`` is from :func:`guarded_pillow`, ``where`` names the file in errors. No decoder but
    those of ``formats`` (in Pillow's names) is used. The decoded image must fit
    ``limits.memory_bytes``; Pillow's own limit applies as well.
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
    # Pillow would silently reduce 16 bits per channel to 8. The depth of a PNG is byte 24 of the
    # file; for other formats Pillow's decoder states it.
    is_deep = (image.format == "PNG" and data[24] > 8) or ";16" in repr(image.tile)
    if image.mode not in _KNOWN_MODES or is_deep:
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

    Gray is the luma of ITU-R 601. ``stretch`` scales each side on its own; ``crop`` scales
    until the image covers the declared size, then cuts equally at both ends. Both
    interpolate bilinearly. Transparency and the orientation tag of a camera are ignored.
    """
    try:
        image = image.convert("L" if mode == "gray" else "RGB")
    except Exception as cause:  # decoders raise many errors for broken bytes
        raise _broken(where, (image.format or "encoded",), f"damage ({cause})") from cause
    if image.size != (width, height):
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
        image = image.resize((width, height), bilinear, box=box)
    return np.asarray(image, np.uint8)


def _broken(where: str, formats: Sequence[str], problem: str) -> DataError:
    """Error for bytes that are not a complete image of a declared format."""
    return DataError(
        where,
        f"a complete {' or '.join(formats)} image",
        problem,
        "Copy the file again, or remove it.",
    )


class Folder:
    """Files below a folder, by relative name with forward slashes, without links out of it."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder, self._limits = folder, limits
        names: list[str] = []
        with translate_os_errors(folder):
            for parent, folders, files in os.walk(folder, onerror=_refuse):
                for name in folders:
                    link = Path(parent, name)
                    if link.is_symlink():  # it may lead outside, or in circles
                        inside(folder, link.relative_to(folder))
                        raise DataError(
                            link, "a folder", "a link to one", "Move the folder itself here."
                        )
                here = Path(parent).relative_to(folder)
                names += [(here / file).as_posix() for file in files]
                limits.check("members", len(names), folder)
        self.names = tuple(sorted(names))

    def read(self, name: str) -> bytes:
        """Read one file."""
        with open_file(inside(self._folder, Path(name)), self._limits) as file:
            self._limits.check("memory_bytes", os.fstat(file.fileno()).st_size, name)
            return file.read()


def _refuse(error: OSError) -> None:
    """Raise for a folder that cannot be listed, instead of skipping it."""
    raise error


class ZipFiles:
    """Files in an open zip archive, by name; names are never used as paths."""

    def __init__(self, archive: zipfile.ZipFile, path: Path, limits: Limits) -> None:
        self._archive, self._path, self._limits = archive, path, limits
        self.names = tuple(sorted(m.filename for m in archive.infolist() if not m.is_dir()))
        limits.check("members", len(self.names), path)
        if len(set(self.names)) < len(self.names):
            raise DataError(
                path,
                "members of different names",
                "a name that occurs twice",
                "Write it again.",
            )

    def read(self, name: str) -> bytes:
        """Unpack one file; zipfile never returns more than its stated size."""
        where = f"{self._path}: {name}"
        self._limits.check("memory_bytes", self._archive.getinfo(name).file_size, where)
        with _zip_errors(where):
            return self._archive.read(name)


@contextmanager
def _zip_errors(where: object) -> Iterator[None]:
    """Translate the errors of zipfile, which raises many kinds for broken archives."""
    try:
        yield
    except Exception as cause:
        raise DataError(
            where,
            "an undamaged zip archive without encryption",
            str(cause) or "damage",
            "Write the archive again.",
        ) from cause


@contextmanager
def _open_files(path: Path, limits: Limits) -> Iterator[Folder | ZipFiles]:
    """Open a folder or a zip archive."""
    with translate_os_errors(path):
        is_folder = path.is_dir()
    if is_folder:
        yield Folder(path, limits)
        return
    with open_file(path, limits) as file:
        with _zip_errors(path):
            archive = zipfile.ZipFile(file)
        with archive:
            yield ZipFiles(archive, path, limits)


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
        in the image), ``listed`` (its name in a list of files to load), and declared groups.
    mode : 'gray' or 'color'
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
    size : int, optional
        Public number of images. It is never compared with the real one.
    name : str, optional
        Name of the data; by default that of the folder or archive.
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
    size: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _checks.whole(height=self.height, width=self.width)
        if self.size is not None:
            _checks.whole(size=self.size)
        _checks.one_of(("gray", "color"), mode=self.mode)
        _checks.one_of(("none", "stretch", "crop"), resize=self.resize)
        object.__setattr__(self, "classes", check_classes(self.classes, "image form"))
        for name in ("patterns", "ignore", "formats"):
            object.__setattr__(self, name, listed(getattr(self, name), name))
        object.__setattr__(self, "aliases", Frozen(self.aliases))
        groups = {name: listed(values, name) for name, values in self.groups.items()}
        object.__setattr__(self, "groups", Frozen(groups))
        if problem := self._problem():
            raise SchemaError("image form", *problem, "Correct the form.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (self.height, self.width, *((3,) if self.mode == "color" else ()))

    @classmethod
    def from_settings(cls, entries: Mapping[str, Any], where: str) -> "ImageForm":
        """Construct a form from the table ``[images]`` of a parsed TOML file."""
        others = [name for name in entries if name != "images"]
        if others:
            raise SchemaError(
                where, "only a table [images]", f"also {others[0]!r}", "Move or remove it."
            )
        where = f"{where}: images"
        settings = expect_table(entries["images"], where)
        for name in ("aliases", "groups"):
            expect_table(settings.get(name, {}), f"{where}: {name}")
        try:
            form: ImageForm = construct_from_settings(cls, settings, where)
        except DataError:
            raise
        except (TypeError, ValueError, OverflowError) as cause:
            raise SchemaError(
                where, "valid settings", str(cause).rstrip("."), "Correct it."
            ) from cause
        return form

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
    only: Collection[str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    row_digests: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Load images of one size; a file that violates the form raises a ``DataError``.

    Parameters
    ----------
    path : path
        A folder, or a zip archive, which is not unpacked on disk.
    part : str, optional
        Load only files of this part.
    only : collection of str, optional
        Paths of the files to load, or what the group ``listed`` of their patterns finds.
    row_digests : bool
        Whether to compute a digest of each image: of the bytes of its file, and of the label,
        groups and unit in its path.

    Returns
    -------
    Dataset
        Bytes of shape (n, height, width) or (n, height, width, 3), sorted by path.
    """
    path = Path(path)
    with _open_files(path, limits) as files:
        matches = _match_names(files, form, path)
        if part is not None:
            matches = {n: m for n, m in matches.items() if m.groupdict().get("part") == part}
        if only is not None:
            matches = _select_listed(matches, only, path)
        if not matches:
            none = "no image at all" if part is None else f"no image of part {part!r}"
            raise DataError(path, "images that the form describes", none, "Check the path.")
        known = class_codes(form.aliases, form.classes)
        labels = _texts(matches, "label", path, known)
        groups = {
            group: Group.from_values(_texts(matches, group, path, values), values)
            for group, values in form.groups.items()
        }
        has_units = "unit" in re.compile(form.patterns[0]).groupindex
        units = _texts(matches, "unit", path) if has_units else None
        X, digests = _decode(files, matches, form, path, limits, progress, row_digests)
    dataset = Dataset(
        X,
        np.array([known[label] for label in labels.tolist()], np.int64),
        form.classes,
        groups=groups,
        units=units,
        row_digests=digests,
        encoded=True,
        size=form.size,
        name=path.name if form.name is None else form.name,
    )
    check_learnable(dataset, path)
    return dataset


Matches = dict[str, re.Match[str]]  # by the name of the file


def _match_names(files: Folder | ZipFiles, form: ImageForm, path: Path) -> Matches:
    """Match every file that is not ignored; one that matches nothing is an error."""
    patterns = [re.compile(pattern) for pattern in form.patterns]
    ignore = [re.compile(pattern) for pattern in form.ignore]
    matches = {}
    for name in files.names:
        if any(pattern.fullmatch(name) for pattern in ignore):
            continue
        try:
            name.encode()
        except UnicodeEncodeError as cause:  # labels and ids are read from it
            escaped = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise DataError(
                f"{path}: {escaped}", "a name in UTF-8", "other bytes", "Rename the file."
            ) from cause
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


def _select_listed(matches: Matches, only: Collection[str], path: Path) -> Matches:
    """Select the listed files; each must exist exactly once."""
    names: dict[str, str] = {}
    for name, match in matches.items():
        entry = match.groupdict().get("listed") or name
        if entry in names and entry in only:
            raise DataError(
                f"{path}: {name}", f"{entry!r} once", "a second one", "Remove one of the files."
            )
        names[entry] = name
    for entry in only:
        if entry not in names:
            raise DataError(
                path, "all listed files", f"no {entry!r}", "Complete the folder or the archive."
            )
    return {name: matches[name] for name in sorted(names[entry] for entry in only)}


def _texts(
    matches: Matches, group: str, path: Path, declared: Iterable[Label] | None = None
) -> Array:
    """Return the text that a group of the patterns matched in each name, one of the declared."""
    known = None if declared is None else {str(value): None for value in declared}
    for name, match in matches.items():
        text = match[group]
        if not text:
            raise DataError(
                f"{path}: {name}", f"a {group} in its name", "none", "Correct the pattern."
            )
        if known is not None and text not in known:
            raise DataError(
                f"{path}: {name}: {group}",
                f"one of {first_of(list(known))}",
                repr(text),
                "Declare the value, or remove the file.",
            )
    return np.array([match[group] for match in matches.values()], TEXT)


def _decode(
    files: Folder | ZipFiles,
    matches: Matches,
    form: ImageForm,
    path: Path,
    limits: Limits,
    progress: Progress | None,
    row_digests: bool,
) -> tuple[Array, Array | None]:
    """Decode files into one array, whose size is checked first, with digests if requested."""
    digests = []
    shape = (len(matches), *form.shape)
    limits.check("rows", len(matches), path)
    limits.check("memory_bytes", math.prod(shape), path)
    X = np.empty(shape, np.uint8)
    with guarded_pillow() as pillow:
        for i, (name, match) in enumerate(matches.items()):
            where = f"{path}: {name}"
            data = files.read(name)
            if row_digests:
                known = match.groupdict()
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
                progress(i + 1, len(matches))
    return X, as_digests(digests) if row_digests else None
