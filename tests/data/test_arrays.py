"""Arrays in npz and npy files arrive unchanged, or not at all."""

import io
import struct
import zipfile

import numpy as np
import pytest

from veracal.data import Category, Grouping, Schema, Target, UnitColumn, Vector
from veracal.data.arrays import load_matrix, map_npy, read_npy, read_npz
from veracal.data.files import Limits
from veracal.data.rows import MappedRows
from veracal.errors import DataError, LimitError


def npy(array, **options):
    """Bytes of an npy file."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npy_with_header(header, body=b"", version=1):
    """Bytes of an npy file with a header of our choice."""
    text = header.encode("latin1")
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + body


def zipped(path, members, **options):
    """Write a zip archive of (name, bytes) pairs."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def altered(path, old, new):
    """Replace bytes of a file."""
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    return path


ARRAYS = {
    "floats": np.linspace(0, 1, 12).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "labels": np.array(["yes", "no", "naïve"]),
    "truth": np.array([True, False]),
    "big_endian": np.arange(3, dtype=">i4"),
    "empty": np.empty((0, 3)),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_gives_back_what_was_saved(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)

    arrays = read_npz(tmp_path / "a.npz")

    assert list(arrays) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
        assert arrays[name].flags.writeable
        assert arrays[name].flags.c_contiguous


@pytest.mark.parametrize("name", ARRAYS)
def test_npy_gives_back_what_was_saved(tmp_path, name):
    np.save(tmp_path / "a.npy", ARRAYS[name])

    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), ARRAYS[name])


def test_npy_version_2_is_read(tmp_path):
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }\n"
    (tmp_path / "a.npy").write_bytes(npy_with_header(header, np.ones(2).tobytes(), version=2))

    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), [1, 1])


def test_real_logits_are_read(data_folder):
    arrays = read_npz(data_folder("logits_cifar/densenet40_cifar10.npz"))

    assert {k: v.shape for k, v in arrays.items()} == {
        "labels_test": (10_000,),
        "labels_val": (5_000,),
        "logits_test": (10_000, 10),
        "logits_val": (5_000, 10),
    }
    assert (arrays["logits_test"].argmax(axis=1) == arrays["labels_test"]).mean() == 0.9242


# ------------------------------------------------------------------ npz refused


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.ones(2))), ("a.npy", npy(np.zeros(2)))])

    with pytest.raises(DataError, match="a name that occurs twice"):
        read_npz(path)


def test_an_encrypted_member_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.ones(2)))])
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)

    with pytest.raises(DataError, match="undamaged arrays.*encrypted"):
        read_npz(path)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros(2**22))

    with pytest.raises(LimitError, match="at most 1,048,576 memory bytes, found 33,"):
        read_npz(tmp_path / "a.npz", Limits(memory_bytes=2**20))
    assert read_npz(tmp_path / "a.npz")["X"].shape == (2**22,)


def test_more_members_than_allowed_are_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [(f"{i}.npy", npy(np.ones(1))) for i in range(4)])

    with pytest.raises(LimitError, match="at most 3 members"):
        read_npz(path, Limits(members=3))


def test_arrays_larger_than_memory_allows_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones(100), b=np.ones(100))

    with pytest.raises(LimitError, match="at most 1,500 memory bytes"):
        read_npz(tmp_path / "a.npz", Limits(memory_bytes=1500))
    assert len(read_npz(tmp_path / "a.npz", Limits(memory_bytes=2000))) == 2


@pytest.mark.parametrize("length", [30, 100, 200, 260, -1])
def test_a_truncated_archive_is_refused(tmp_path, length):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.ones(10)))])
    path.write_bytes(path.read_bytes()[:length])

    with pytest.raises(DataError):
        read_npz(path)


def test_a_member_that_was_altered_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.full(10, 7, np.uint8)))])
    altered(path, b"\7" * 10, b"\7" * 9 + b"\6")

    with pytest.raises(DataError, match="found Bad CRC-32"):
        read_npz(path)


def test_a_truncated_member_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.ones(10))[:-8])])

    with pytest.raises(DataError, match=r"reading array data, expected 80 bytes got 72"):
        read_npz(path)


def test_what_is_no_zip_is_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"hello")
    with pytest.raises(DataError, match="expected undamaged arrays.*not a zip file"):
        read_npz(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"npz file.*'a\.txt'"):
        read_npz(zipped(tmp_path / "b.npz", [("a.txt", "hello")]))
    with pytest.raises(DataError, match="an empty archive"):
        read_npz(zipped(tmp_path / "c.npz", []))
    with pytest.raises(DataError, match="nothing at that path"):
        read_npz(tmp_path / "d.npz")


def test_a_zip64_archive_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for i in range(3):
            with archive.open(f"{i}.npy", "w", force_zip64=True) as member:
                member.write(npy(np.full(2, i)))

    assert list(read_npz(tmp_path / "a.npz")) == ["0", "1", "2"]


# ------------------------------------------------------------------ npy refused


@pytest.mark.parametrize("how", ["npz", "npy"])
def test_python_objects_are_refused_without_unpickling(tmp_path, how):
    array = np.array([{"a": 1}], dtype=object)
    if how == "npz":
        np.savez(tmp_path / "a.npz", a=array)
    else:
        np.save(tmp_path / "a.npy", array)

    with pytest.raises(DataError, match="unpickling runs code"):
        (read_npz if how == "npz" else read_npy)(tmp_path / f"a.{how}")


HEADER = "{'descr': %r, 'fortran_order': False, 'shape': %s, }\n"


BROKEN = [
    b"hello",
    b"\x93NUMPY\1\0",
    b"\x93NUMPY\3\0\1\0\0\0 ",
    b"\x93NUMPY\2\0\xff\xff\xff\x7f{",
    b"\x93NUMPY\1\0\xff\xff" + b" " * 65535,
    b"\x93NUMPY\1\0\x40\0{}",
    npy_with_header("{}\n"),
    npy_with_header("[" * 5000 + "\n"),
    npy_with_header("__import__('os').abort()\n"),
    npy_with_header(HEADER % ("<f8", "(-1,)")),
    npy_with_header(HEADER % ("<f8", "(3,)"), b"\0" * 23),
    npy_with_header(HEADER % ("<f8", "(3,)"), b"\0" * 25),
    npy_with_header(HEADER % ("<f8", "(10**30,)")),
    npy_with_header(HEADER % ("<f8", f"({10**15}, 7)")),
    npy_with_header(HEADER % ("<f8", f"({10**18},)")),
    npy_with_header(HEADER % ("<f8", f"(1, {10**18})")),
    npy_with_header(HEADER % ("<U0", "(9,)")),
    npy_with_header(HEADER % ("<M8[s]", "(1,)"), b"\0" * 8),
    npy_with_header(HEADER % ("<c16", "(1,)"), b"\0" * 16),
    npy_with_header(HEADER % ("|S3", "(1,)"), b"abc"),
    npy(np.zeros(2, [("a", "f8")])),
    npy(np.zeros(2, np.longdouble)),
]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("read", [read_npy, map_npy])
def test_broken_npy_files_are_refused(tmp_path, read, data):
    (tmp_path / "a.npy").write_bytes(data)

    with pytest.raises(DataError):
        read(tmp_path / "a.npy")


def test_a_float_type_of_one_machine_is_refused_with_a_remedy(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(2, np.longdouble))

    with pytest.raises(DataError, match=r"at most 64 bits, found type float.*'float64'"):
        read_npy(tmp_path / "a.npy")


def test_shapes_beyond_the_limits_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 5)))

    for read in (read_npy, map_npy):
        with pytest.raises(LimitError, match="at most 2 rows"):
            read(tmp_path / "a.npy", Limits(rows=2))
        with pytest.raises(LimitError, match="at most 4 columns"):
            read(tmp_path / "a.npy", Limits(columns=4))


def test_npy_files_larger_than_allowed_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(100))

    with pytest.raises(LimitError, match="memory bytes"):
        read_npy(tmp_path / "a.npy", Limits(memory_bytes=800))
    with pytest.raises(LimitError, match="file bytes"):
        read_npy(tmp_path / "a.npy", Limits(file_bytes=800))
    assert len(map_npy(tmp_path / "a.npy", Limits(memory_bytes=800))) == 100


# ------------------------------------------------------------------ rows on disk


def test_rows_stay_on_disk_and_are_the_saved_ones(tmp_path, rng):
    X = rng.normal(size=(50, 3)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)

    rows = map_npy(tmp_path / "X.npy")

    assert isinstance(rows, MappedRows)
    np.testing.assert_array_equal(rows[10:20], X[10:20])


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.asfortranarray(np.ones((3, 2))), "Fortran order"),
        (np.ones((3, 2), ">f4"), "another machine's byte order"),
        (np.array([["a"]]), "type <U1"),
        (np.float64(1.0), "a single number"),
        (np.empty((0, 2)), "no rows"),
    ],
)
def test_arrays_that_cannot_be_mapped_are_refused_with_a_remedy(tmp_path, array, problem):
    np.save(tmp_path / "X.npy", array)

    with pytest.raises(DataError, match=f"{problem}.*ascontiguousarray"):
        map_npy(tmp_path / "X.npy")


@pytest.fixture
def folder(tmp_path):
    """A folder of arrays with units and a group."""
    folder = tmp_path / "clinic"
    folder.mkdir()
    np.save(folder / "X.npy", np.arange(8, dtype=np.float32).reshape(4, 2))
    np.save(folder / "y.npy", np.array(["ill", "well", "ill", "ill"]))
    np.save(folder / "units.npy", np.array([7, 7, 8, 9]))
    np.save(folder / "group_sex.npy", np.array(["f", "m", "f", "m"]))
    (folder / "README").write_text("left alone")
    return folder


DECLARED = {"classes": ["well", "ill"], "groups": {"sex": ["m", "f"]}}


def load_array_folder(folder, classes, groups=(), size=None, name="clinic", units=True):
    """Load a folder whose schema declares these classes and groups."""
    columns = {"X": Vector(2, -100, 100, center=0, spread=1), "y": Target(classes)}
    columns |= {"units": UnitColumn()} if units else {}
    columns |= {f"group_{g}": Category(groups[g], feature=False) for g in groups}
    grouping = {group: Grouping(f"group_{group}") for group in groups}
    return load_matrix(folder, Schema(columns, groups=grouping, size=size, name=name))


def test_a_folder_of_arrays_is_a_data_set(folder):
    data = load_array_folder(folder, **DECLARED, size=5)

    assert isinstance(data.X, MappedRows)
    np.testing.assert_array_equal(data.X[:], np.load(folder / "X.npy"))
    assert data.y.tolist() == [1, 0, 1, 1]
    assert data.classes == ("well", "ill")
    assert data.groups["sex"].codes.tolist() == [1, 0, 1, 0]
    assert data.units.tolist() == [7, 7, 8, 9]
    assert (data.size, data.name) == (5, "clinic")


def test_units_are_optional(folder):
    (folder / "units.npy").unlink()

    assert load_array_folder(folder, **DECLARED, units=False).units is None
    with pytest.raises(DataError, match=r"units\.npy exactly when the schema declares a unit"):
        load_array_folder(folder, **DECLARED)


def test_a_lost_units_file_is_not_taken_for_none(folder):
    (folder / "units.npy").unlink()
    (folder / "units.npy").symlink_to(folder / "nowhere.npy")

    with pytest.raises(DataError, match="nothing at that path"):
        load_array_folder(folder, **DECLARED)


def test_groups_are_declared_or_refused(folder):
    with pytest.raises(DataError, match="one without a declaration"):
        load_array_folder(folder, classes=["well", "ill"])
    with pytest.raises(DataError, match=r"group_sex\.npy: expected one of 'm', 'x', found 'f'"):
        load_array_folder(folder, classes=["well", "ill"], groups={"sex": ["m", "x"]})
    (folder / "group_sex.npy").unlink()
    with pytest.raises(DataError, match=r"group_sex.npy: expected an existing file"):
        load_array_folder(folder, **DECLARED)


def test_labels_must_be_declared(folder):
    with pytest.raises(DataError, match=r"clinic.y\.npy: expected .*found 'ill' in record 1"):
        load_array_folder(folder, classes=["well", "dead"], groups=DECLARED["groups"])


@pytest.mark.parametrize("name", ["y", "units", "group_sex"])
@pytest.mark.parametrize("shape", [(1,), (5,), (4, 1), (4, 2), ()])
def test_files_beside_the_rows_are_columns_as_long(folder, name, shape):
    np.save(folder / f"{name}.npy", np.zeros(shape, int))

    with pytest.raises(DataError, match=rf"{name}\.npy: expected shape \(4,\): 4 rows, as X"):
        load_array_folder(folder, **DECLARED)


@pytest.mark.parametrize("ids", [[1.0, 2.0, np.nan, 2.0], ["a", "", "", "b"]])
def test_units_that_are_missing_are_refused(folder, ids):
    np.save(folder / "units.npy", np.array(ids))

    with pytest.raises(DataError, match=r"units\.npy: units: expected"):
        load_array_folder(folder, **DECLARED)


@pytest.mark.parametrize("name", ["X", "y", "units", "group_sex"])
def test_a_link_out_of_the_folder_is_refused(folder, name):
    (folder / f"{name}.npy").rename(folder.parent / "elsewhere.npy")
    (folder / f"{name}.npy").symlink_to(folder.parent / "elsewhere.npy")

    with pytest.raises(DataError, match="leads outside"):
        load_array_folder(folder, **DECLARED)


def test_a_folder_that_is_none_is_refused(folder):
    with pytest.raises(DataError, match="no folder"):
        load_array_folder(folder / "README", **DECLARED)
    with pytest.raises(DataError, match="no folder"):
        load_array_folder(folder / "nowhere", **DECLARED)
    (folder / "X.npy").unlink()
    with pytest.raises(DataError, match="nothing at that path"):
        load_array_folder(folder, **DECLARED)


def test_rows_that_are_not_finite_are_refused(folder):
    np.save(folder / "X.npy", np.array([[0, 1], [np.nan, 1], [0, 1], [0, 1]], np.float32))

    with pytest.raises(DataError, match="nan in record 2"):
        load_array_folder(folder, **DECLARED)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_whatever_byte_breaks_the_error_is_ours(tmp_path, rng, save):
    path = tmp_path / "a.npz"
    save(path, a=np.arange(5), b=np.array(["x", "yz"]))
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= int(rng.integers(1, 256))
        path.write_bytes(broken)
        try:
            read_npz(path)
        except DataError:
            refused += 1

    assert refused > len(whole) / 2
