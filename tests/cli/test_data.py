"""The data commands: results on stdout, the rest on stderr, and one line for an error."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veracal import __version__
from veracal.cli import GROUPS, _output
from veracal.data import CATALOG, load
from veracal.errors import DataError
from veracal.neural.pretrained import minilm_folder

VISITS = "id,age,sex,label\n1,30,f,yes\n2,?,m,no\n3,50,m,no\n3,51,m,yes\n4,20,f,no\n"
SCHEMA = """
format = 1
missing = ["?"]
size = 5000
name = "visits"
[columns.id]
kind = "unit"
max_contributions = 2
[columns.age]
kind = "number"
lower = 0
upper = 120
missing = "drop"
[columns.sex]
kind = "category"
values = ["f", "m"]
[columns.label]
kind = "target"
classes = ["no", "yes"]
[groups.sex]
column = "sex"
"""


@pytest.fixture
def visits(tmp_path):
    (tmp_path / "visits.csv").write_text(VISITS)
    (tmp_path / "visits.toml").write_text(SCHEMA)
    return tmp_path


# ---------------------------------------------------------------- all commands


def test_the_version(run):
    assert run("--version") == (0, f"veracal {__version__}\n", "")


@pytest.mark.parametrize("group", GROUPS)
def test_every_command_has_an_example_of_itself(run, group):
    _, listed, _ = run(group, "--help")
    names = re.findall(r"^│ (\w+) ", listed, re.MULTILINE)
    assert names
    for name in names:
        code, printed, _ = run(group, name, "--help")
        assert code == 0
        assert f"veracal {group} {name}" in printed.partition("Example:")[2]


def test_nothing_heavy_is_imported_for_help():
    code = (
        "import sys\n"
        "from veracal.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'scipy', 'sklearn', 'polars', 'pyarrow', 'torch'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    for words in (["--help"], ["--version"], ["data", "--help"], ["data", "show", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ("data", "check", "x.csv"),
        ("data", "nothing"),
        ("data", "show", "digits", "--no-such-option"),
        ("data", "show", "digits", "--schema", "x.toml"),
        ("data", "show", "x.csv", "--part", "train"),
        ("data", "show", "a/b", "--part", "train"),
    ],
)
def test_wrong_usage_exits_with_2(run, words):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "Usage: veracal data" in err


@pytest.mark.parametrize(
    "words",
    [
        ("data", "show", "brest-cancer"),
        ("data", "show", "x.csv"),
        ("data", "show", "n" * 300),
        ("data", "check", "x.csv", "--schema", "x.toml"),
        ("data", "show", "digits", "--part", "train"),
    ],
)
def test_a_foreseen_error_exits_with_1_and_one_line(run, words):
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error: .*expected .*found .*\.\n", err)


def test_errors_name_the_command_line_arguments(run, visits):
    code, _, err = run("data", "show", "visits.csv")
    assert code == 1
    assert "expected a schema" in err
    assert "pass --schema." in err
    code, _, err = run("data", "show", "nosuch")
    assert code == 1
    assert "expected the name of a built-in set, or the path of a file, found 'nosuch'" in err


@pytest.mark.parametrize("words", [("show",), ("features", "--out", "f")])
def test_a_schema_belongs_to_a_file_that_exists(run, visits, words):
    code, _, err = run("data", *words, "nosuch", "--schema", "visits.toml")
    assert code == 1
    assert err == (
        "error: nosuch: expected an existing file, found nothing at that path. "
        "Check the spelling.\n"
    )


def test_control_characters_in_files_are_escaped(run, tmp_path):
    """Names and values in a schema, and errors about them, are escaped."""
    evil = "\x1b[2J\u202e\x9b"
    (tmp_path / "t.toml").write_text(
        f"format = 1\nname = {json.dumps(evil)}\n"
        f"[columns.{json.dumps(evil)}]\nkind = 'category'\nvalues = [{json.dumps(evil)}, 'q']\n"
        "[columns.y]\nkind = 'target'\nclasses = ['a', 'b']\n"
        f"[groups.{json.dumps(evil)}]\ncolumn = {json.dumps(evil)}\n"
    )
    (tmp_path / "t.csv").write_text(f"{evil},y\n{evil},a\nq,b\n")
    (tmp_path / "wrong.csv").write_text(f"{evil},y\n{evil}?,a\nq,b\n")
    words = (
        ("data", "show", "t.csv", "--schema", "t.toml"),
        ("data", "show", "t.csv", "--schema", "t.toml", "--json"),
        ("data", "check", "t.csv", "--schema", "t.toml"),
        ("data", "check", "wrong.csv", "--schema", "t.toml"),
        ("schema", "check", "t.toml"),
        ("schema", "draft", "t.csv", "--target", evil),
    )
    for command in words:
        _, out, err = run(*command)
        assert out + err
        assert all(character.isprintable() or character == "\n" for character in out + err)
    assert "\\u001b[2J\\u202e\\u009b" in run(*words[0])[1]


def test_json_output_is_valid_or_an_error(capsys):
    for value in (float("-inf"), date(2020, 1, 1)):
        with pytest.raises(DataError, match="JSON can hold"):
            _output.print_json({"value": value})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_encoding_prints_something(encoding, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from veracal.cli import main; main()", "data", "list"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding, "VERACAL_CACHE": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    sign = "\\u00d7" if encoding == "ascii" else "×"
    assert f"8{sign}8 handwritten digits" in done.stdout.decode(encoding)


def test_lists_are_clear():
    assert _output.format_list(["a", "b, c", "", " d", "[0, 18]", "(18, 65]"]) == (
        "a, 'b, c', '', ' d', [0, 18], (18, 65]"
    )
    assert _output.format_list(range(10), 2) == "0, 1, … (10 in all)"
    assert _output.format_list(["?", ","], quote=True) == "'?', ','"
    assert _output.format_count(1, "row") == "1 row"
    assert _output.format_count(1200, "row") == "1,200 rows"


def test_a_bug_gives_a_traceback_without_the_records(monkeypatch):
    code = (
        "import veracal.data.loading as t\n"
        "def broken(*args, **more):\n    record = 'very private'; raise RuntimeError('a bug')\n"
        "t.count_records = broken\n"
        "open('s.toml', 'w').write('''" + SCHEMA + "''')\n"
        "from veracal.cli import main; main()"
    )
    words = ["data", "check", "x.csv", "--schema", "s.toml"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert "RuntimeError: a bug" in done.stderr
    assert "very private" not in done.stderr


# ---------------------------------------------------------------- list


def test_the_list_has_every_set_in_a_hundred_columns(run):
    code, out, err = run("data", "list")
    assert (code, err) == (0, "")
    assert all(re.search(rf"^ {name} ", out, re.MULTILINE) for name in CATALOG)
    assert max(map(len, out.splitlines())) <= 100
    assert re.search(r"digits .*1,797 × 64 × 10", out)


@pytest.mark.parametrize("width", [60, 80])
def test_the_list_loses_nothing_in_a_terminal(tmp_path, width):
    printed = in_terminal(width, "data", "list")
    lines = printed.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in printed
    for known in CATALOG.values():
        assert any(re.match(rf" {known.name} +{known.title.split()[0]}", x) for x in lines)
    assert re.search(r"digits +8×8 handwritten digits +\n +1,797 × 64 × 10", printed)


def test_show_loses_nothing_in_a_terminal(tmp_path):
    printed = in_terminal(60, "data", "show", "breast-cancer")
    assert max(map(len, printed.splitlines())) <= 60
    assert "…" not in printed
    assert re.search(r"worst fractal dimension +number; 0 to 0\.3 +1", printed)
    assert re.search(
        r"mean radius +number +0 to 40 +error +1",
        in_terminal(80, "data", "show", "breast-cancer"),
    )


def in_terminal(width: int, *words: str) -> str:
    """The output in a terminal of a given width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    code = "from veracal.cli import main; main()"
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=follower,
        stdout=follower,
        stderr=subprocess.DEVNULL,  # where the progress is
        env={**environment, "TERM": "xterm", "NO_COLOR": "1"},
    ) as running:
        os.close(follower)
        parts = []
        with suppress(OSError), os.fdopen(leader, "rb", buffering=0) as printed:
            while part := printed.read(65536):  # Linux ends a terminal with an error
                parts.append(part)
    assert running.returncode == 0
    text = b"".join(parts).decode().replace("\r", "")
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_the_list_as_json(run):
    code, out, _ = run("data", "list", "--json")
    sets = {known["name"]: known for known in json.loads(out)["sets"]}
    assert code == 0
    assert set(sets) == set(CATALOG)
    assert sets["digits"]["shape"] == "1,797 × 64 × 10"
    assert sets["synthetic-clipping"]["parts"] == ["train", "test"]


# ---------------------------------------------------------------- show, check


def test_show_gives_the_schema_and_a_split(run):
    code, out, err = run("data", "show", "breast-cancer")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    assert re.search(r"mean radius +number +0 to 40 +error +1", out)
    assert re.search(r"diagnosis +target +malignant, benign +error +–", out)
    assert re.search(r"declared size +569", out)
    assert "Real rows are internal: private under add/remove." in out
    rows = re.findall(r"^ (train|calibration|test) +(\d+)% +(\d+) +(\d+)", out, re.MULTILINE)
    assert [row[:3] for row in rows] == [
        ("train", "80", "455"),
        ("calibration", "10", "57"),
        ("test", "10", "57"),
    ]
    assert sum(int(row[3]) for row in rows) == 569


def test_each_split_is_new(run):
    actual = {run("data", "show", "digits", "--json")[1] for _ in range(4)}
    assert len({json.dumps(json.loads(out)["internal"]) for out in actual}) > 1


def test_show_as_json_marks_real_counts_as_internal(run, visits):
    code, out, _ = run("data", "show", "visits.csv", "--schema", "visits.toml", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["classes"] == ["no", "yes"]
    assert facts["groups"] == {"sex": ["f", "m"]}
    assert (facts["unit"], facts["max_contributions"], facts["size"]) == ("id", 2, 5000)
    assert facts["features"] == {"shape": [3], "names": ["age", "sex=f", "sex=m"]}
    assert facts["schema"]["columns"]["age"] == {
        "kind": "number",
        "lower": 0,
        "upper": 120,
        "missing": "drop",
    }
    assert facts["split"]["parts"]["train"] == {"share": 0.8, "nominal_size": 4000}
    internal = facts.pop("internal")
    assert internal["rows"] == sum(internal["parts"].values()) == 4
    assert "private under add/remove" in internal["note"]


def test_show_describes_a_user_table(run, visits):
    code, out, _ = run("data", "show", "visits.csv", "--schema", "visits.toml")
    assert code == 0
    assert re.search(r"id +unit +at most 2 rows +error +–", out)
    assert re.search(r"age +number +0 to 120 +drop the row +1", out)
    assert re.search(r"sex +category +f, m +error +2", out)
    assert re.search(r"unit +id, with at most 2 rows", out)
    assert re.search(r"missing marks +'\?'", out)
    assert "independent for each unit" in out


def test_show_says_every_treatment_of_a_column(run, tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c,d,label\n1,x,[bold],9,0\n2,y,z,9,1\n")
    (tmp_path / "t.toml").write_text(
        "format = 1\nnorm = 2.5\nmissing = ['']\n"
        "[columns.a]\nkind = 'number'\nlower = 0\nupper = 1\noutside = 'clip'\n"
        "missing = { constant = 0.5 }\n"
        "[columns.b]\nkind = 'category'\nvalues = ['x']\noutside = 'ignore'\n"
        "missing = 'indicator'\n"
        "[columns.c]\nkind = 'category'\nvalues = ['[bold]', 'z']\nfeature = false\n"
        "[columns.d]\nkind = 'ignore'\n"
        "[columns.label]\nkind = 'target'\nclasses = [0, 1]\n"
    )
    code, out, _ = run("data", "show", "t.csv", "--schema", "t.toml")
    assert code == 0
    assert re.search(r"a +number +0 to 1, clipped +0\.5 instead +1", out)
    assert re.search(r"b +category +x, others ignored +indicator +2", out)
    assert re.search(r"c +category +\[bold\], z +error +–", out)
    assert re.search(r"d +ignore +–", out)
    assert re.search(r"norm of a row +at most 2\.5", out)
    assert re.search(r"declared size +not declared", out)
    assert re.search(r"train +80% +not declared", out)


def test_show_counts_in_good_grammar(run, tmp_path):
    (tmp_path / "t.csv").write_text("u,x,y\n1,1000001,0\n2,1000002,1\n")
    (tmp_path / "t.toml").write_text(
        "format = 1\n[columns.u]\nkind = 'unit'\nmax_contributions = 1\n"
        "[columns.x]\nkind = 'number'\nlower = 1000000\nupper = 1000003\n"
        "[columns.y]\nkind = 'target'\nclasses = [0, 1]\n"
    )
    _, out, _ = run("data", "show", "t.csv", "--schema", "t.toml")
    assert re.search(r"a record is +1 number\s", out)
    assert re.search(r"unit +u, with at most 1 row\s", out)
    assert "1000000 to 1000003" in out


def test_show_describes_text(run, tmp_path):
    (tmp_path / "t.csv").write_text("t,y\na b,0\nc d,1\n")
    (tmp_path / "t.toml").write_text(
        "format = 1\nsize = 2\n[columns.t]\nkind = 'text'\n"
        "[columns.y]\nkind = 'target'\nclasses = [0, 1]\n"
    )
    code, out, _ = run("data", "show", "t.csv", "--schema", "t.toml")
    assert code == 0
    assert re.search(r"a record is +a text", out)


def test_check_counts_what_is_read_and_dropped(run, visits):
    code, out, err = run("data", "check", "visits.csv", "--schema", "visits.toml")
    assert (code, err) == (0, "")
    assert re.findall(r"(\w+) +(\d) records?\n", out) == [
        ("read", "5"),
        ("kept", "4"),
        ("dropped", "1"),
    ]
    assert "private under add/remove" in out
    code, out, _ = run("data", "check", "visits.csv", "--schema", "visits.toml", "--json")
    assert json.loads(out)["internal"]["dropped"] == 1


def test_check_names_the_record_that_is_wrong(run, visits):
    with (visits / "visits.csv").open("a") as file:
        file.write("5,200,f,no\n")
    code, out, err = run("data", "check", "visits.csv", "--schema", "visits.toml")
    assert (code, out) == (1, "")
    assert "'200' in record 6" in err


def test_check_accepts_a_matrix_on_disk(run, tmp_path):
    np = pytest.importorskip("numpy")
    (tmp_path / "m").mkdir()
    np.save(tmp_path / "m" / "X.npy", np.zeros((7, 3), np.float32))
    np.save(tmp_path / "m" / "y.npy", np.array([0, 1, 0, 1, 0, 1, 0]))
    (tmp_path / "m.toml").write_text(
        "format = 1\n[columns.X]\nkind = 'vector'\nsize = 3\nlower = -1\nupper = 1\n"
        "center = 0\nspread = 1\n[columns.y]\nkind = 'target'\nclasses = [0, 1]\n"
    )
    code, out, _ = run("data", "check", "m", "--schema", "m.toml", "--json")
    assert code == 0
    assert json.loads(out)["internal"]["read"] == json.loads(out)["internal"]["kept"] == 7


def test_a_group_that_cannot_be_saved_is_rejected_before_the_work(run, tmp_path, monkeypatch):
    def extract(*_, **__):
        raise AssertionError("the work began")

    monkeypatch.setattr("veracal.neural.extract", extract)
    (tmp_path / "t.csv").write_text("t,s,y\na b,f,0\nc d,m,1\n")
    (tmp_path / "t.toml").write_text(
        "format = 1\n[columns.t]\nkind = 'text'\n"
        "[columns.s]\nkind = 'category'\nvalues = ['f', 'm']\nfeature = false\n"
        "[columns.y]\nkind = 'target'\nclasses = [0, 1]\n"
        "[groups.'a/b']\ncolumn = 's'\n"
    )
    code, _, err = run("data", "features", "t.csv", "--schema", "t.toml", "--out", "f")
    assert code == 1
    assert "Rename the group" in err


@pytest.fixture
def reviews(tmp_path):
    """A table of short texts."""
    words = ("good", "bad", "long", "short")
    lines = [f"a {word} film number {i},{i % 2}" for i, word in enumerate(words * 3)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *lines]))
    (tmp_path / "reviews.toml").write_text(
        "format = 1\n[columns.text]\nkind = 'text'\n"
        "[columns.label]\nkind = 'target'\nclasses = [0, 1]\n"
    )
    return ("reviews.csv", "--schema", "reviews.toml")


def test_features_by_a_network_in_a_folder(run, reviews):
    words = ("data", "features", *reviews, "--tokens", "32", "--no-cache")
    code, _, err = run(*words, "--out", "f", "--network", "nowhere")
    assert code == 1 and "a folder with config.json, found no folder" in err
    assert not Path("f").exists()
    code, out, _ = run(*words, "--out", "f", "--network", str(minilm_folder()))
    assert (code, out) == (0, "f\n")
    assert run(*words, "--out", "g")[0] == 0
    actual, usual = (load(one, schema=f"{one}/schema.toml").X[:] for one in "fg")
    np.testing.assert_allclose(actual, usual, atol=1e-6)


def test_features_are_extracted_into_a_folder(run, reviews):
    code, out, err = run("data", "features", *reviews, "--out", "f", "--no-cache")
    assert (code, out) == (0, "f\n")
    assert "Treat them like the records" in err
    assert load("f", schema="f/schema.toml").X.shape == (12, 384)
    code, _, err = run("data", "features", *reviews, "--out", "f")
    assert code == 1
    assert "expected a new folder" in err
    Path("t.csv").write_text("x,y\n0.5,0\n0.1,1\n")
    Path("t.toml").write_text(
        "format = 1\n[columns.x]\nkind = 'number'\nlower = 0\nupper = 1\n"
        "[columns.y]\nkind = 'target'\nclasses = [0, 1]\n"
    )
    code, _, err = run("data", "features", "t.csv", "--schema", "t.toml", "--out", "g")
    assert code == 1
    assert "need another extractor" in err


def test_features_of_a_folder_of_images(run, tmp_path):
    for part in ("train", "test"):
        for i, label in enumerate(("cat", "dog")):
            folder = tmp_path / "pets" / part / label
            folder.mkdir(parents=True)
            for owner in range(2):
                shade = Image.new("RGB", (32, 32), (90 * i + owner, 9, 9))
                shade.save(folder / f"{owner}_1.png")
    (tmp_path / "pets.toml").write_text(
        "format = 1\n[images]\nsize = 8\nclasses = ['cat', 'dog']\nheight = 32\nwidth = 32\n"
        "patterns = ['(?P<part>train|test)/(?P<label>cat|dog)/(?P<unit>[0-9])_1.png']\n"
    )
    words = ("data", "features", "pets", "--schema", "pets.toml", "--no-cache")
    code, out, err = run(*words, "--out", "f", "--pixels", "32", "--part", "train")
    assert (code, out) == (0, "f\n"), err
    encoded = load("f", schema="f/schema.toml")
    assert encoded.X.shape == (4, 1280)
    assert (encoded.labels.tolist(), encoded.size) == (["cat", "cat", "dog", "dog"], 8)
    assert encoded.units.tolist() == ["0", "1", "0", "1"]
    code, _, err = run("data", "show", "pets", "--schema", "pets.toml")
    assert code == 1 and "Encode the images by `veracal data features`" in err
