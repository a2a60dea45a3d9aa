"""What strangers put into an artifact is refused in one clear way, and nothing of it runs."""

import json
import os
import struct

import numpy as np
import pytest
from safetensors.numpy import save

from tests.artifact.examples import changed, classifier, replaced
from veracal.artifact import PrivateClassifier
from veracal.errors import DataError, LimitError, VeracalError

WEIGHTS, MODEL = "model.safetensors", "model.json"


@pytest.fixture
def folder(tmp_path):
    return classifier().save(tmp_path / "a")


def refused(folder, match, kind=DataError):
    with pytest.raises(kind, match=match):
        PrivateClassifier.load(folder)


def test_a_missing_folder_or_file_is_reported(tmp_path):
    refused(tmp_path / "none", "no folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "a file model.json")


@pytest.mark.parametrize("name", [WEIGHTS, MODEL])
@pytest.mark.parametrize("where", [0, 100, -1])
def test_a_changed_byte_is_detected(folder, name, where):
    content = bytearray((folder / name).read_bytes())
    content[where] ^= 1
    (folder / name).write_bytes(bytes(content))
    with pytest.raises(VeracalError):
        PrivateClassifier.load(folder)


@pytest.mark.parametrize("name", [WEIGHTS, MODEL])
@pytest.mark.parametrize("kept", [0, 7, 0.5, 0.99])
def test_a_truncated_file_is_detected(folder, name, kept):
    content = (folder / name).read_bytes()
    length = int(kept * len(content)) if kept < 1 else kept
    (folder / name).write_bytes(content[:length])
    with pytest.raises(VeracalError):
        PrivateClassifier.load(folder)


def test_a_longer_file_is_not_read(folder):
    with (folder / WEIGHTS).open("ab") as file:
        file.truncate(10**12)  # a hole: nothing of it is on the disk
    refused(folder, "at most", LimitError)


def test_a_longer_file_is_not_read_even_if_the_manifest_lists_it(folder):
    with (folder / WEIGHTS).open("ab") as file:
        file.truncate(10**12)
    changed(folder, lambda m: m["files"][WEIGHTS].update(bytes=10**12))
    refused(folder, "at most", LimitError)


def test_a_huge_manifest_is_not_read(folder):
    with (folder / MODEL).open("ab") as file:
        file.truncate(10**11)
    refused(folder, "at most", LimitError)


@pytest.mark.parametrize("name", [WEIGHTS, MODEL])
def test_links_and_pipes_are_not_followed(folder, name, tmp_path):
    copy = tmp_path / "copy"
    (folder / name).rename(copy)
    (folder / name).symlink_to(copy)
    refused(folder, "a link")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, "something else")
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, "something else|directory")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m.update(version=2), "version 2. Update Veracal"),
        (lambda m: m.update(recalibrations=None), "recalibrations"),
        (lambda m: m.update(recalibrations=[{}]), "exactly study"),
        (lambda m: m.update(guarantee={}), "exactly epsilon"),
        (lambda m: m["guarantee"].update(epsilon="1"), "guarantee: epsilon: expected a number"),
        (lambda m: m["guarantee"].update(epsilon=-1.0), "out of range"),
        (lambda m: m["guarantee"].update(reasons=[]), "exactly private"),
        (lambda m: m["guarantee"].update(relation="none"), "add-remove"),
        (lambda m: m.update(ledger={"name": 1}), "text"),
        (lambda m: m.update(feature_names=[1]), "text"),
        (lambda m: m.update(version=0), "version 1"),
        (lambda m: m.update(version="1"), "version 1"),
        (lambda m: m.update(version=True), "version 1"),
        (lambda m: m.update(format="pickle"), "format"),
        (lambda m: m.pop("map"), "exactly name"),
        (lambda m: m.update(code="import os"), "exactly name"),
        (lambda m: m.update(classes=["one"]), "at least two"),
        (lambda m: m.update(classes=["a", "a"]), "at least two"),
        (lambda m: m.update(classes="ab"), "classes"),
        (lambda m: m.update(features=10**9), "weights for every feature"),
        (lambda m: m.update(features=31), "shape"),
        (lambda m: m.update(features=True), "features"),
        (lambda m: m.update(model={"kind": "torch", "one_vs_rest": False}), "linear"),
        (lambda m: m.update(model={"kind": "linear"}), "linear"),
        (lambda m: m.update(map={"kind": "temperature", "version": 1}), "fields"),
        (lambda m: m.update(map={"kind": "eval", "version": 1}), "a map of kind"),
        (lambda m: m["map"].update(inverse=-1.0), "inverse"),
        (lambda m: m.update(schema="columns = 3"), "format = 1"),
        (lambda m: m["files"].update({"../../etc/passwd": {"bytes": 1, "sha256": ""}}), "name"),
        (lambda m: m["files"][WEIGHTS].update(bytes=-1), "a size"),
        (lambda m: m["files"].pop(WEIGHTS), "a hash of model.safetensors"),
    ],
)
def test_invalid_manifests_are_rejected(folder, change, match):
    changed(folder, change)
    refused(folder, match, VeracalError)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"format": 1', "[" * 100_000, '{"a":1,"a":2}', "NaN", "\ud83d"],
    ids=range(9),
)
def test_invalid_json_is_rejected(folder, text):
    (folder / MODEL).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(VeracalError):
        PrivateClassifier.load(folder)


def header(content: object, body: bytes = b"") -> bytes:
    written = json.dumps(content).encode()
    return struct.pack("<Q", len(written)) + written + body


RIGHT = {"coef": np.zeros((1, 30)), "intercept": np.zeros(1)}
COEF = {"dtype": "F64", "shape": [1, 30], "data_offsets": [0, 240]}
INTERCEPT = {"dtype": "F64", "shape": [1], "data_offsets": [240, 248]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04K\x01.",  # a pickle
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        header([]),
        header({}),
        struct.pack("<Q", 2) + b"\xff\xfe",
        header({"coef": COEF}, bytes(248)),
        header({"coef": 1, "intercept": 2}, bytes(248)),
        header({"coef": COEF, "intercept": INTERCEPT}, bytes(247)),
        header({"coef": COEF, "intercept": INTERCEPT}, bytes(249)),
        header({"coef": COEF, "intercept": {**INTERCEPT, "data_offsets": [0, 8]}}, bytes(248)),
        header({"coef": COEF, "intercept": {**INTERCEPT, "dtype": "F32"}}, bytes(248)),
        header({"coef": COEF, "intercept": {**INTERCEPT, "more": 1}}, bytes(248)),
        header(
            {"coef": {**COEF, "data_offsets": [0.0, 240.0]}, "intercept": INTERCEPT}, bytes(248)
        ),
        header(
            {"coef": {**COEF, "data_offsets": [-240, 0]}, "intercept": INTERCEPT}, bytes(248)
        ),
        save({**RIGHT, "more": np.zeros(1)}),
        save({**RIGHT, "coef": np.zeros((30, 1))}),
        save({**RIGHT, "coef": np.full((1, 30), np.nan)}),
        save({**RIGHT, "intercept": np.array([np.inf])}),
    ],
    ids=range(20),
)
def test_invalid_weights_are_rejected(folder, content):
    replaced(folder, content)
    with pytest.raises(VeracalError) as caught:
        PrivateClassifier.load(folder)
    assert WEIGHTS in str(caught.value)


def test_valid_weights_are_read(folder):
    """So that the tests above fail for what they are about."""
    replaced(folder, save(RIGHT))
    assert PrivateClassifier.load(folder).predict_proba(np.zeros((1, 30))).tolist() == [
        [0.5, 0.5]
    ]
    replaced(folder, header({"coef": COEF, "intercept": INTERCEPT}, bytes(248)))
    assert PrivateClassifier.load(folder).n_features_in_ == 30
