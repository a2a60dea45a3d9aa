"""Arrays in npz and npy files arrive unchanged, or not at all."""

import io
import struct
import zipfile

import numpy as np
import pytest

from veracal.data.arrays import load_array_folder, map_npy, read_npy, read_npz
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

    found = read_npz(tmp_path / "a.npz")

    assert list(found) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].flags.writeable
        assert found[name].flags.c_contiguous


@pytest.mark.parametrize("name", ARRAYS)
def test_npy_gives_back_what_was_saved(tmp_path, name):
    np.save(tmp_path / "a.npy", ARRAYS[name])

    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), ARRAYS[name])


def test_npy_version_2_is_read(tmp_path):
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }\n"
    (tmp_path / "a.npy").write_bytes(npy_with_header(header, np.ones(2).tobytes(), version=2))

    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), [1, 1])


def test_real_logits_are_read(data_folder):
    found = read_npz(data_folder("logits_cifar/densenet40_cifar10.npz"))

    assert {k: v.shape for k, v in found.items()} == {
        "labels_test": (10_000,),
        "labels_val": (5_000,),
        "logits_test": (10_000, 10),
        "logits_val": (5_000, 10),
    }
    assert (found["logits_test"].argmax(axis=1) == found["labels_test"]).mean() == 0.9242


# ------------------------------------------------------------------ npz refused


@pytest.mark.parametrize(
    "name",
    ["../a.npy", "/a.npy", "x/../../a.npy", "C:/a.npy", "x\\a.npy", "./a.npy", "a//b.npy"],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    path = zipped(tmp_path / "a.npz", [(name, npy(np.ones(2)))])

    with pytest.raises(DataError, match="plain file, stored or deflated"):
        read_npz(path)


def test_a_symbolic_link_in_a_zip_is_refused(tmp_path):
    link = zipfile.ZipInfo("a.npy")
    link.external_attr = 0o120777 << 16
    path = zipped(tmp_path / "a.npz", [(link, "elsewhere")])

    with pytest.raises(DataError, match="symbolic link"):
        read_npz(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.ones(2))), ("a.npy", npy(np.zeros(2)))])

    with pytest.raises(DataError, match=r"'a\.npy' twice"):
        read_npz(path)


def test_an_encrypted_member_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.ones(2)))])
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)

    with pytest.raises(DataError, match="an encrypted member"):
        read_npz(path)


def test_compression_we_do_not_know_is_refused(tmp_path):
    path = zipped(
        tmp_path / "a.npz", [("a.npy", npy(np.ones(2)))], compression=zipfile.ZIP_BZIP2
    )

    with pytest.raises(DataError, match="compression method 12"):
        read_npz(path)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros(2**22))

    with pytest.raises(LimitError, match=r"unpacks to at most 200 times.*Limits\(expansion="):
        read_npz(tmp_path / "a.npz")
    assert read_npz(tmp_path / "a.npz", Limits(expansion=2000))["X"].shape == (2**22,)


def test_a_bomb_beside_ordinary_arrays_is_refused(tmp_path, rng):
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros(2**19), noise=rng.random(2**17))

    with pytest.raises(LimitError, match=r"X\.npy': expected data that unpacks to at most 200"):
        read_npz(tmp_path / "a.npz")


def test_members_that_share_their_bytes_are_refused(tmp_path):
    """Ten entries for the same packed bytes: each is fine by itself, the sum is a bomb."""
    member = npy(np.arange(2**17) // 8)
    path = zipped(tmp_path / "a.npz", [("0.npy", member)], compression=zipfile.ZIP_DEFLATED)
    data = path.read_bytes()
    start, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    limits = Limits(expansion=2 * len(member) // start)
    read_npz(path, limits)
    entry = data[start:end]
    many = b"".join(entry.replace(b"0.npy", f"{i}.npy".encode()) for i in range(10))
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 10, 10, len(many), start, 0)
    path.write_bytes(data[:start] + many + tail)

    with pytest.raises(LimitError, match=r"a\.npz: expected data that unpacks to at most"):
        read_npz(path, limits)


def test_more_members_than_allowed_are_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [(f"{i}.npy", npy(np.ones(1))) for i in range(4)])

    with pytest.raises(LimitError, match="at most 3 members"):
        read_npz(path, Limits(members=3))
    # An archive may lie about the number of its members.
    altered(path, b"PK\5\6\0\0\0\0\4\0\4\0", b"PK\5\6\0\0\0\0\1\0\1\0")
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

    with pytest.raises(DataError, match="undamaged zip archive, found Bad CRC-32"):
        read_npz(path)


def test_a_member_shorter_than_announced_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.ones(10)))])
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2")
    data[entry + 24] += 1  # low byte of the size once unpacked
    path.write_bytes(data)

    with pytest.raises(DataError, match="208 bytes instead of 209"):
        read_npz(path)


@pytest.mark.parametrize(
    ("size", "message"),
    [(10, "breaks off"), (60, "breaks off"), (10**6, "larger than the file")],
)
def test_a_directory_of_another_size_is_refused(tmp_path, size, message):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.ones(10)))])
    data = path.read_bytes()
    end = data.index(b"PK\5\6")
    path.write_bytes(data[: end + 12] + struct.pack("<L", size) + data[end + 16 :])

    with pytest.raises(DataError, match=f"a directory .*{message}"):
        read_npz(path)


def test_a_truncated_member_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [("a.npy", npy(np.ones(10))[:-8])])

    with pytest.raises(DataError, match=r"expected 80 bytes for float64.*found 72"):
        read_npz(path)


def test_what_is_no_zip_is_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"hello")
    with pytest.raises(DataError, match="expected a zip archive"):
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
            archive.writestr(f"{i}.npy", npy(np.full(2, i)))
    data = (tmp_path / "a.npz").read_bytes()
    end = data.index(b"PK\5\6")
    size, start = struct.unpack("<2L", data[end + 12 : end + 20])
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, size, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    old = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)
    (tmp_path / "a.npz").write_bytes(data[:end] + record + locator + old)

    assert list(read_npz(tmp_path / "a.npz")) == ["0", "1", "2"]
    with pytest.raises(LimitError, match="members"):
        read_npz(tmp_path / "a.npz", Limits(members=2))
    altered(tmp_path / "a.npz", b"PK\6\6", b"PK\6\5")
    with pytest.raises(DataError, match="a directory that is not where it should be"):
        read_npz(tmp_path / "a.npz")


# ------------------------------------------------------------------ npy refused


@pytest.mark.parametrize("how", ["npz", "npy"])
def test_python_objects_are_refused_without_unpickling(tmp_path, how):
    array = np.array([{"a": 1}], dtype=object)
    if how == "npz":
        np.savez(tmp_path / "a.npz", a=array)
    else:
        np.save(tmp_path / "a.npy", array)

    with pytest.raises(DataError, match="Pickle runs whatever code"):
        (read_npz if how == "npz" else read_npy)(tmp_path / f"a.{how}")


HEADER = "{'descr': %r, 'fortran_order': False, 'shape': %s, }\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello", "another kind of file"),
        (b"\x93NUMPY\1\0", "breaks off"),
        (b"\x93NUMPY\3\0\1\0\0\0 ", "npy version 3.0"),
        (b"\x93NUMPY\2\0\xff\xff\xff\x7f{", "a header of 2,147,483,647 bytes"),
        (b"\x93NUMPY\1\0\xff\xff" + b" " * 65535, "a header of 65,535 bytes"),
        (b"\x93NUMPY\1\0\x40\0{}", "breaks off"),
        (npy_with_header("{}\n"), "cannot be read"),
        (npy_with_header("[" * 5000 + "\n"), "cannot be read"),
        (npy_with_header("__import__('os').abort()\n"), "cannot be read"),
        (npy_with_header(HEADER % ("<f8", "(-1,)")), r"found shape \(-1,\)"),
        (npy_with_header(HEADER % ("<f8", "(True,)")), "float64|cannot be read"),
        (npy_with_header(HEADER % ("<f8", "(3,)"), b"\0" * 23), "expected 24 bytes.*found 23"),
        (npy_with_header(HEADER % ("<f8", "(3,)"), b"\0" * 25), "expected 24 bytes.*found 25"),
        (npy_with_header(HEADER % ("<f8", "(10**30,)")), "cannot be read"),
        (npy_with_header(HEADER % ("<f8", f"({10**9}, 7)")), "expected 56,000,000,000 bytes"),
        (npy_with_header(HEADER % ("<f8", f"({10**18},)")), "at most 1,000,000,000 rows"),
        (npy_with_header(HEADER % ("<f8", f"(1, {10**18})")), "at most 200,000 columns"),
        (npy_with_header(HEADER % ("<U0", "(9,)")), "type <U0"),
        (npy_with_header(HEADER % ("<M8[s]", "(1,)"), b"\0" * 8), "type datetime64"),
        (npy_with_header(HEADER % ("<c16", "(1,)"), b"\0" * 16), "type complex128"),
        (npy_with_header(HEADER % ("|S3", "(1,)"), b"abc"), r"type \|S3"),
        (npy(np.zeros(2, [("a", "f8")])), "type "),
        (npy(np.zeros(2, np.longdouble)), r"at most 64 bits, found type float.*'float64'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_npy_files_are_refused(tmp_path, data, message):
    (tmp_path / "a.npy").write_bytes(data)

    for read in (read_npy, map_npy):
        with pytest.raises(DataError, match=message):
            read(tmp_path / "a.npy")


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
    ("array", "found"),
    [
        (np.asfortranarray(np.ones((3, 2))), "Fortran order"),
        (np.ones((3, 2), ">f4"), "another machine's byte order"),
        (np.array([["a"]]), "type <U1"),
        (np.float64(1.0), "a single number"),
        (np.empty((0, 2)), "no rows"),
    ],
)
def test_what_cannot_be_mapped_is_refused_with_a_remedy(tmp_path, array, found):
    np.save(tmp_path / "X.npy", array)

    with pytest.raises(DataError, match=f"{found}.*ascontiguousarray"):
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

    assert load_array_folder(folder, **DECLARED, name="other").units is None


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
