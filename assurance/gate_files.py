"""A foreign file runs no code, reaches no other file and stays within the size limits.

Each attack is a file or folder that tries one thing. A loader with a limit on memory opens it
in a separate process with bounded memory and CPU time; any result but a clear refusal
breaks the promise.
"""

import io
import os
import pickle
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assurance import servers
from assurance.servers import peak_memory
from veracal.data import Limits, Number, Schema, Target, Vector, load
from veracal.data.images import ImageForm, load_images
from veracal.data.texts import TextForm, load_text
from veracal.errors import DataError

NAME = "files"
SECONDS = 15
MOST_MEMORY = 200 * 2**20
MOST_SECONDS = 20  # of CPU
Loader = Callable[[Path], object]

TABLE = Schema({"x": Number(0, 1), "y": Target((0, 1))})
MATRIX = Schema({"X": Vector(2, -1, 1, center=0, spread=1), "y": Target((0, 1))})
IMAGES = ImageForm(
    classes=("a", "b"), height=8, width=8, mode="gray", patterns=(r"(?P<label>[ab])/.+\.png",)
)
TEXTS = TextForm(text=("s",), label="y", classes=("0", "1"), lines="jsonl")


LIMITS = Limits(memory_bytes=2**26)


def correct(path: Path) -> object:
    """Load as the library does."""
    if path.suffix == ".jsonl":
        return load_text(path, TEXTS, limits=LIMITS)
    if path.suffix == ".zip" or (path / "a").is_dir():
        return load_images(path, IMAGES, limits=LIMITS)
    return load(path, schema=MATRIX if path.is_dir() else TABLE, limits=LIMITS)


def unpickling(path: Path) -> object:
    """Trust numpy files."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=True) as arrays:
            return {name: arrays[name] for name in arrays.files}
    if path.is_dir() and (path / "y.npy").exists():
        return np.load(path / "y.npy", allow_pickle=True)
    return correct(path)


def unpacking(path: Path) -> object:
    """Write the members of an archive to the paths that they state."""
    if path.suffix in (".zip", ".npz"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                target = path.parent / "unpacked" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    return correct(path)


def unlimited(path: Path) -> object:
    """Read an archive or a line before asking how long it is."""
    if path.suffix in (".npz", ".zip"):
        with zipfile.ZipFile(path) as archive:
            return [archive.read(name) for name in archive.namelist()]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".csv":
        return [line.split(",") for line in path.read_text().splitlines()]
    return correct(path)


def following_links(path: Path) -> object:
    """Read whatever a link in the folder points to."""
    if path.is_dir() and (path / "y.npy").is_symlink():
        return np.load(path / "y.npy")
    return correct(path)


CORRECT: Loader = correct
MUTANTS: dict[str, Loader] = {
    "unpickles": unpickling,
    "unpacks where it is told": unpacking,
    "no limits": unlimited,
    "follows links": following_links,
}


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def run(subject: Loader, *, long: bool) -> str:
    """Offer every attack to the loader."""
    for name, attack in ATTACKS.items():
        with tempfile.TemporaryDirectory() as folder:
            root, outside = Path(folder) / "root", Path(folder) / "outside"
            root.mkdir()
            outcome = try_loading(subject, attack(root, outside))
            assert not outside.exists() or (outside / "planted").exists(), f"{name}: code ran"
            assert outcome == "refused", f"{name}: {outcome}"
    return f"{len(ATTACKS)} attacks refused within {MOST_MEMORY // 2**20} MB"


def try_loading(subject: Loader, path: Path) -> str:
    """Load in a separate process and return the outcome."""
    try:
        return str(servers.run_in_fork(_attempt, subject, path, cpu=MOST_SECONDS))
    except ChildProcessError as error:
        return str(error)


def _attempt(subject: Loader, path: Path) -> str:
    """Run in the child: load, and report the outcome."""
    before = peak_memory()
    try:
        subject(path)
        outcome = "loaded"
    except DataError as error:
        outcome = "refused" if len(str(error)) < 1000 else "refused at length"
    except BaseException as error:
        outcome = f"raised {type(error).__name__}: {str(error)[:80]}"
    grown = peak_memory() - before
    return outcome if grown <= MOST_MEMORY else f"took {grown // 2**20} MB"


# The attacks: each writes its file below root and returns its path ------------------------


@cache
def large(write: Callable[[Path], None]) -> tuple[Any, Path]:
    """A file that takes seconds to write, for every subject; no attack is to change it."""
    folder = tempfile.TemporaryDirectory()
    write(Path(folder.name, "file"))
    return folder, Path(folder.name, "file")


def once(name: str) -> Callable[[Callable[[Path], None]], Callable[[Path, Path], Path]]:
    """An attack whose file is written once, and then linked to."""

    def attack(write: Callable[[Path], None]) -> Callable[[Path, Path], Path]:
        @wraps(write)
        def link(root: Path, outside: Path) -> Path:
            os.link(large(write)[1], root / name)
            return root / name

        return link

    return attack


def npy(array: np.ndarray) -> bytes:
    """An npy file in memory."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def header(text: bytes) -> bytes:
    """An npy file whose header says whatever it likes."""
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def archive(path: Path, members: dict[str, bytes]) -> Path:
    """A zip file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def png(width: int, height: int) -> bytes:
    """A gray PNG that claims a size and packs as many zeros as it takes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    start = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    lines = zlib.compress(b"\0" * min((width + 1) * height, 10**6))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", start)
        + chunk(b"IDAT", lines)
        + chunk(b"IEND", b"")
    )


def pickled_npz(root: Path, outside: Path) -> Path:
    objects = np.array([Canary(outside)], dtype=object)
    return archive(root / "p.npz", {"x.npy": npy(objects)})


def raw_pickle_in_npz(root: Path, outside: Path) -> Path:
    return archive(root / "p.npz", {"x.npy": pickle.dumps(Canary(outside)), "y": b"\x80"})


def pickled_labels(root: Path, outside: Path) -> Path:
    (root / "m").mkdir()
    np.save(root / "m" / "X.npy", np.zeros((2, 2), np.float32))
    (root / "m" / "y.npy").write_bytes(npy(np.array([Canary(outside)], dtype=object)))
    return root / "m"


def linked_labels(root: Path, outside: Path) -> Path:
    outside.mkdir()
    (outside / "planted").write_text("so that the folder may exist")
    np.save(outside / "y.npy", np.array([0, 1]))
    (root / "m").mkdir()
    np.save(root / "m" / "X.npy", np.zeros((2, 2), np.float32))
    (root / "m" / "y.npy").symlink_to(outside / "y.npy")
    return root / "m"


@once("b.npz")
def bomb(path: Path) -> None:
    zeros = npy(np.zeros(40_000_000))
    archive(path, {"x.npy": zeros, "y.npy": zeros})


@once("h.npz")
def huge_header(path: Path) -> None:
    archive(path, {"x.npy": header(b"{" + b" " * 30_000_000 + b"}")})


def huge_shape(root: Path, outside: Path) -> Path:
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"
    return archive(root / "s.npz", {"x.npy": header(text)})


def code_in_header(root: Path, outside: Path) -> Path:
    text = f"{{'descr': __import__('os').mkdir({str(outside)!r}), 'shape': ()}}\n".encode()
    return archive(root / "c.npz", {"x.npy": header(text)})


def traversal_in_zip(root: Path, outside: Path) -> Path:
    return archive(root / "t.zip", {"a/1.png": png(8, 8), "../../outside/b/1.png": png(8, 8)})


def traversal_in_npz(root: Path, outside: Path) -> Path:
    return archive(root / "t.npz", {"../../outside/x.npy": npy(np.zeros(2))})


@once("z.zip")
def zip_of_zeros(path: Path) -> None:
    archive(path, {"a/1.png": b"\0" * 300_000_000, "b/1.png": png(8, 8)})


@once("g.zip")
def giant_image(path: Path) -> None:
    archive(path, {"a/1.png": png(60_000, 60_000), "b/1.png": png(8, 8)})


def linked_images(root: Path, outside: Path) -> Path:
    outside.mkdir()
    (outside / "planted").write_text("so that the folder may exist")
    (outside / "1.png").write_bytes(png(8, 8))
    for label in ("a", "b"):
        (root / "i" / label).mkdir(parents=True)
        (root / "i" / label / "1.png").symlink_to(outside / "1.png")
    return root / "i"


@once("z.parquet")
def packed_parquet(path: Path) -> None:
    table = pa.table({"x": np.zeros(40_000_000), "y": np.zeros(40_000_000, np.int8)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)


@once("e.csv")
def endless_line(path: Path) -> None:
    path.write_bytes(b"x,y\n" + b"1" * 150_000_000)


def many_columns(root: Path, outside: Path) -> Path:
    (root / "c.csv").write_text(",".join(f"c{i}" for i in range(400_000)) + "\n")
    return root / "c.csv"


def nested_json(root: Path, outside: Path) -> Path:
    (root / "n.jsonl").write_text('{"s": ' + "[" * 200_000 + "\n")
    return root / "n.jsonl"


ATTACKS: dict[str, Callable[[Path, Path], Path]] = {
    attack.__name__.replace("_", " "): attack
    for attack in (
        pickled_npz,
        raw_pickle_in_npz,
        pickled_labels,
        linked_labels,
        bomb,
        huge_header,
        huge_shape,
        code_in_header,
        traversal_in_zip,
        traversal_in_npz,
        zip_of_zeros,
        giant_image,
        linked_images,
        packed_parquet,
        endless_line,
        many_columns,
        nested_json,
    )
}
