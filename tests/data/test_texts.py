"""Labelled text arrives as it is written, or not at all."""

import json
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from veracal.data.files import Limits
from veracal.data.texts import Rating, TextForm, load_text
from veracal.errors import DataError, LimitError, SchemaError

ONE = TextForm(("sentence",), "label", ("no", "yes"), {"0": "no", "1": "yes"})
JSON = TextForm(("premise", "hypothesis"), "label", ("no", "yes"), lines="jsonl")


@pytest.fixture
def file(tmp_path):
    """A function that writes a file, and returns its path."""

    def write(data, name="train.tsv"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


def test_sentences_and_labels_are_read_as_written(file):
    path = file("sentence\tlabel\n a \"lone quote , naïve \t1\n'tis\t0\n")

    data = load_text(path, replace(ONE, size=2))

    assert data.X.tolist() == [[' a "lone quote , naïve '], ["'tis"]]
    assert data.X.dtype == np.dtypes.StringDType()
    assert data.labels.tolist() == ["yes", "no"]
    assert (data.size, data.name, data.units, dict(data.groups)) == (2, "train.tsv", None, {})


@pytest.mark.parametrize(
    "whole",
    [
        b"sentence\tlabel\na\t1\nb\t0\n",
        b"sentence\tlabel\na\t1\nb\t0",
        b"sentence\tlabel\r\na\t1\r\nb\t0\r\n",
        b"\xef\xbb\xbfsentence\tlabel\na\t1\nb\t0\n",
        b"label\tid\tsentence\n1\t7\ta\n0\t8\tb\n",
    ],
    ids=["plain", "no last newline", "windows", "byte-order mark", "other order"],
)
def test_layouts_of_the_same_table_agree(file, whole):
    data = load_text(file(whole), ONE)

    assert data.X.tolist() == [["a"], ["b"]]
    assert data.y.tolist() == [1, 0]


def test_only_newlines_end_lines(file):
    odd = "a\u2028b\x85c\x0bd\x0ce\rf"

    data = load_text(file(f"sentence\tlabel\n{odd}\t1\nx\t0\n"), ONE)

    assert data.X.tolist() == [[odd], ["x"]]


def test_columns_may_be_numbered(file):
    form = TextForm((2, 1), 0, ("no", "yes"), header=False, width=3)

    data = load_text(file("yes\ta\tb\nno\tc\td\n"), form)

    assert data.X.tolist() == [["b", "a"], ["d", "c"]]
    assert data.y.tolist() == [1, 0]


def test_json_lines_are_read(file):
    rows = [
        {"premise": "p\t\n", "hypothesis": "", "label": "yes", "tag": None, "more": [1, {}]},
        {"label": "no", "hypothesis": "😀", "premise": "\u2028"},
    ]
    path = file("\n".join(map(json.dumps, rows)), "dev.jsonl")

    data = load_text(path, JSON)

    assert data.X.tolist() == [["p\t\n", ""], ["\u2028", "😀"]]
    assert data.labels.tolist() == ["yes", "no"]


def test_json_labels_may_be_numbers(file):
    form = replace(JSON, text=("s",), aliases={"0": "no", "1": "yes"})

    data = load_text(file('{"s": "a", "label": 1}\n{"s": "b", "label": 0}'), form)

    assert data.labels.tolist() == ["yes", "no"]


def test_groups_and_units_are_read(file):
    form = replace(ONE, groups={"place": ("x", "y")}, unit="id", unit_until="_")
    path = file("id\tsentence\tplace\tlabel\n7_1\ta\ty\t0\n7_2\tb\tx\t0\n8\tc\tx\t1\n")

    data = load_text(path, form)

    assert data.units.tolist() == ["7", "7", "8"]
    assert data.groups["place"].codes.tolist() == [1, 0, 0]
    assert data.groups["place"].names == ("x", "y")


def test_ratings_become_classes_by_their_side_of_the_cut(file):
    path = file("1\t-0.5\ta\n2\t1e-9\tb\n3\t0.0\tc\n4\t+3\td\n")
    form = TextForm((2,), 1, ("bad", "good"), rating=Rating(), header=False, width=3)
    three = replace(form, classes=("bad", "so-so", "good"), rating=Rating(0.0, "so-so"))

    assert load_text(path, form).labels.tolist() == ["bad", "good", "good"]
    assert load_text(path, three).labels.tolist() == ["bad", "good", "so-so", "good"]
    assert load_text(path, replace(form, rating=Rating(1))).labels.tolist() == [
        *["bad"] * 3,
        "good",
    ]


@pytest.mark.parametrize("text", ["", "nan", "inf", "1_0", "0x1", "high", "1,5", "١", "1e999"])
def test_ratings_that_are_no_numbers_are_refused(file, text):
    form = TextForm((1,), 0, ("bad", "good"), rating=Rating(), header=False, width=2)

    with pytest.raises(DataError, match=r"line 2: label: expected a number"):
        load_text(file(f"1.5\ta\n{text}\tb\n"), form)


def test_progress_goes_from_the_start_to_the_end(file):
    path = file("sentence\tlabel\n" + "a\t1\nb\t0\n" * 5_000)
    calls = []

    load_text(path, ONE, progress=lambda done, total: calls.append((done, total)))

    assert calls == sorted(calls)
    assert len(calls) == 4
    assert calls[-1] == (path.stat().st_size,) * 2


UNITS = replace(JSON, text=("s",), unit="id")


def with_ids(*ids):
    """JSON lines of one sentence each, of these individuals."""
    return "\n".join(
        json.dumps({"s": "a", "label": ("no", "yes")[i % 2], "id": id_})
        for i, id_ in enumerate(ids)
    )


def test_ids_are_whole_numbers_or_text(file):
    data = load_text(file(with_ids(7, "7", 10**25, "07")), UNITS)

    assert data.units.tolist() == ["7", "7", "1" + 25 * "0", "07"]


@pytest.mark.parametrize("number", ["1.0", "1e0", "0.5", "1E25"])
def test_ids_with_a_fraction_are_refused(file, number):
    text = with_ids(1, 1).replace('"id": 1}', f'"id": {number}}}')

    with pytest.raises(DataError, match="line 1: id: expected text or a whole number"):
        load_text(file(text), UNITS)


@pytest.mark.parametrize("empty", ["", " ", "\t"])
def test_a_record_without_an_id_is_refused(file, empty):
    with pytest.raises(DataError, match="line 2: id: expected an id, found none"):
        load_text(file(with_ids("a", empty, "b")), UNITS)


def test_a_unit_that_is_cut_to_nothing_is_none(file):
    form = replace(ONE, unit="id", unit_until="_")

    with pytest.raises(DataError, match="line 3: id: expected an id"):
        load_text(file("id\tsentence\tlabel\n7_1\ta\t0\n_2\tb\t1\n"), form)


def test_a_record_that_is_left_out_needs_no_id(file):
    form = replace(ONE, unit="id", drop=("-",))
    path = file("id\tsentence\tlabel\n7\ta\t0\n\tb\t-\n8\tc\t1\n")

    assert load_text(path, form).units.tolist() == ["7", "8"]


def test_an_undeclared_group_is_refused_with_its_line(file):
    form = replace(ONE, groups={"place": ("x", "y")}, drop=("-",))
    path = file("sentence\tplace\tlabel\na\tx\t0\nb\tx\t-\nc\tz\t1\n")

    with pytest.raises(DataError, match="line 4: place: expected one of 'x', 'y', found 'z'"):
        load_text(path, form)


# ------------------------------------------------------------------ labels


def test_a_file_of_one_class_is_refused(file):
    with pytest.raises(
        DataError, match=r"train\.tsv: expected records of at least two classes"
    ):
        load_text(file("sentence\tlabel\na\t1\nb\t1\n"), ONE)


def test_rows_without_a_label_are_dropped_only_if_their_mark_is_declared(file):
    path = file("sentence\tlabel\na\t1\nb\t-\nc\t0\n")

    with pytest.raises(
        DataError, match=r"line 3: label: expected one of 'no', 'yes', '0', '1'"
    ):
        load_text(path, ONE)
    assert load_text(path, replace(ONE, drop=("-",))).X.tolist() == [["a"], ["c"]]


def test_a_file_without_labels_is_refused(file):
    with pytest.raises(DataError, match=r"'label', found index, sentence.*GLUE's test files"):
        load_text(file("index\tsentence\n0\ta\n", "test.tsv"), ONE)
    with pytest.raises(
        DataError, match=r"line 1: expected a column 'label'.*GLUE's test files"
    ):
        load_text(file('{"premise": "a", "hypothesis": "b"}'), JSON)


@pytest.mark.parametrize("data", ["sentence\tlabel\n", "sentence\tlabel\na\t-\n"])
def test_a_file_without_records_is_refused(file, data):
    with pytest.raises(DataError, match="at least one labeled record"):
        load_text(file(data), replace(ONE, drop=("-",)))
    with pytest.raises(DataError, match="an empty file"):
        load_text(file(""), ONE)


# ------------------------------------------------------------------ bad files


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("sentence\tlabel\na\t1\nb\n", "line 3: expected 2 columns, found 1"),
        ("sentence\tlabel\na\t1\t\n", "line 2: expected 2 columns, found 3"),
        ("sentence\tlabel\na\t1\n\n", "line 3: expected 2 columns, found 1"),
        (
            "sentence\tlabel\tlabel\na\t1\t1\n",
            "columns: expected different names, found 'label'",
        ),
        ("text\tlabel\na\t1\n", "expected a column 'sentence', found text, label"),
        (
            b"sentence\tlabel\ncaf\xe9\t1\n",
            "line 2: expected UTF-8 text, found byte e9 at column 4",
        ),
        (
            "sentence\tlabel\n".encode("utf-16"),
            "line 1: expected UTF-8 text, found a zero byte",
        ),
        (b"sentence\tlabel\na\0\t1\n", "line 2: expected UTF-8 text, found a zero byte"),
        (b"sentence\tlabel\n\xed\xa0\x80\t1\n", "line 2: expected UTF-8"),
        ("sentence\tlabel\na\t2\n", "line 2: label: expected one of .*found '2'"),
    ],
)
def test_bad_tables_are_refused(file, data, message):
    with pytest.raises(DataError, match=message):
        load_text(file(data), ONE)


def test_a_declared_number_of_broken_lines_is_left_out(file):
    path = file("sentence\tlabel\na\t1\nbroken\nin two\t1\t\nb\t0\n")

    assert load_text(path, replace(ONE, broken=2)).X.tolist() == [["a"], ["b"]]
    with pytest.raises(DataError, match="line 4: expected 2 columns"):
        load_text(path, replace(ONE, broken=1))


def obj(**fields):
    return json.dumps({"premise": "a", "hypothesis": "b", "label": "yes"} | fields)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "expected a JSON object, found list"),
        ("", "expected strict JSON"),
        ("{", "expected strict JSON"),
        (obj() + "x", "strict JSON.*Extra data"),
        (obj()[:-1] + ', "label": "no"}', "the key 'label' twice"),
        (obj(more={"x": 1})[:-2] + ', "x": 2}}', "the key 'x' twice"),
        (obj()[:-1] + ', "x": NaN}', "the number NaN"),
        (obj()[:-1] + ', "x": -Infinity}', "the number -Infinity"),
        (obj()[:-1] + ', "x": 1e999}', "the number 1e999"),
        (obj()[:-1] + ', "x": ' + "9" * 5000 + "}", "strict JSON"),
        (obj()[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
        (obj()[:-1] + ', "x": ' + '{"a":' * 100_000 + "1" + "}" * 100_001, "nested too deep"),
        (obj(premise=1), "premise: expected text, found int"),
        (obj(premise=None), "premise: expected text, found NoneType"),
        (obj(label=True), "label: expected text, found bool"),
        (obj(label=["yes"]), "label: expected text, found list"),
        (obj(label=1.5), "found '1.5'"),
        (obj(premise="\ud800"), "strict JSON.*surrogates not allowed"),
        (obj().replace("hypothesis", "guess"), "expected a column 'hypothesis'"),
    ],
    ids=lambda value: value[:20],
)
def test_bad_json_lines_are_refused(file, line, message):
    with pytest.raises(DataError, match=rf"line 2.*{message}"):
        load_text(file(obj() + "\n" + line + "\n"), JSON)


def test_limits_hold(file):
    path = file("sentence\tlabel\n" + "a\t1\n" * 9 + "é" * 50 + "\t0\n")

    load_text(path, ONE, limits=Limits(field_bytes=100))
    with pytest.raises(LimitError, match="line 11: sentence: expected at most 99 field bytes"):
        load_text(path, ONE, limits=Limits(field_bytes=99))
    with pytest.raises(LimitError, match="line 11: expected a line of at most 96 bytes"):
        load_text(path, ONE, limits=Limits(field_bytes=3))
    with pytest.raises(LimitError, match="at most 10 rows"):
        load_text(path, ONE, limits=Limits(rows=10))
    with pytest.raises(LimitError, match="at most 150 memory bytes"):
        load_text(path, ONE, limits=Limits(memory_bytes=150))
    with pytest.raises(LimitError, match="at most 150 file bytes"):
        load_text(path, ONE, limits=Limits(file_bytes=150))
    with pytest.raises(LimitError, match="at most 1 columns"):
        load_text(path, ONE, limits=Limits(columns=1))


def test_paths_that_are_no_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="a folder"):
        load_text(tmp_path, ONE)
    with pytest.raises(DataError, match="nothing at that path"):
        load_text(tmp_path / "gone.tsv", ONE)


def test_whatever_byte_breaks_the_error_is_ours(file, rng):
    whole = (obj() + "\n" + obj(label="no") + "\n").encode()
    refused = 0
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= int(rng.integers(1, 256))
        try:
            load_text(file(bytes(broken)), JSON)
        except DataError:
            refused += 1

    assert refused > len(whole) / 3


# ------------------------------------------------------------------ forms


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": ()}, "one or two columns"),
        ({"text": ("a", "b", "c")}, "one or two columns"),
        ({"classes": ("yes",), "aliases": {}}, "at least two different labels"),
        ({"aliases": {"0": "never"}}, "declared classes, found 'never'"),
        ({"aliases": {"no": "yes"}}, "aliases that are not classes themselves, found 'no'"),
        ({"drop": ("no",)}, "missing labels that denote no class, found 'no'"),
        ({"drop": ("0",)}, "missing labels that denote no class, found '0'"),
        ({"drop": "NA"}, "a tuple of marks, found 'NA'"),
        ({"classes": (0, 1), "aliases": {}, "drop": ("1",)}, "denote no class, found '1'"),
        ({"rating": Rating(0, "never")}, "declared classes, found 'never'"),
        ({"header": False}, "indices of columns"),
        ({"header": False, "width": 2}, "indices of columns"),
        ({"text": (0,), "lines": "jsonl"}, "names of columns"),
    ],
)
def test_forms_that_contradict_themselves_are_refused(changes, message):
    with pytest.raises((SchemaError, DataError), match=message):
        replace(ONE, **changes)


@pytest.mark.parametrize("changes", [{"lines": "csv"}, {"broken": -1}])
def test_settings_of_a_form_are_checked(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(ONE, **changes)


def test_a_numbered_column_must_exist(file):
    with pytest.raises(DataError, match="a column 5, found sentence, label"):
        load_text(file("sentence\tlabel\na\t1\n"), replace(ONE, text=(5,)))


def test_forms_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        ONE.label = "other"
    with pytest.raises(TypeError):
        ONE.aliases["2"] = "yes"


def test_a_form_that_drops_records_says_so(tmp_path):
    (tmp_path / "t.tsv").write_text("s\ty\ngood\t1\nbad\t0\nodd\t-\n")
    form = TextForm(text=("s",), label="y", classes=("0", "1"), drop=("-",))
    dropped = load_text(tmp_path / "t.tsv", form)
    assert len(dropped) == 2 and dropped.may_drop
    (tmp_path / "t.tsv").write_text("s\ty\ngood\t1\nbad\t0\n")
    assert not load_text(tmp_path / "t.tsv", replace(form, drop=())).may_drop
