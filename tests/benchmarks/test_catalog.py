"""Every set that has a name loads by it, as its publisher describes it."""

import io
import re
import struct
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.datasets import CATALOG, DatasetRequest, FetchError, entry, fetch, load
from benchmarks.datasets.sources import FromExtra, FromFolder, FromPip, Package
from veracal.data import Dataset, Limits
from veracal.errors import DataError, LimitError

KEPT = [
    name
    for name, known in CATALOG.items()
    if any(isinstance(source, FromFolder) and source.files for source in known.sources)
    and name not in ("mnist", "cifar10")
    and not name.startswith("sentiment")
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads the user's own cache."""
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "cache"))


def check_declared(dataset: Dataset, **request: str | None) -> None:
    """Compare what is declared about a set with what was loaded of it."""
    name = request.pop("set_name")
    declared = entry(name).declare(DatasetRequest(**request))
    assert len(declared) == 0
    assert (declared.X.shape[1:], declared.X.dtype) == (dataset.X.shape[1:], dataset.X.dtype)
    for field in fields(Dataset):
        mine, theirs = getattr(declared, field.name), getattr(dataset, field.name)
        if field.name == "groups":
            assert {g: mine[g].names for g in mine} == {g: theirs[g].names for g in theirs}
        elif field.name in ("units", "slots"):
            assert (mine is None) == (theirs is None), field.name
        elif field.name == "classes" and name in ("sun397", "food101"):
            assert len(mine) == int(name[-3:])  # their names are in a file of the set
        elif field.name not in ("X", "y", "row_digests"):
            assert mine == theirs, field.name


# ---------------------------------------------------------------- what it says


@pytest.mark.parametrize("known", CATALOG.values(), ids=list(CATALOG))
def test_an_entry_says_what_a_user_must_know(known):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", known.name)
    for text in (known.title, known.shape, known.task, known.license):
        assert text.strip() == text != ""
    assert known.sources
    without = isinstance(known.sources[0], FromExtra)
    assert without == (len(known.sources) == 1 and not isinstance(known.sources[0], FromFolder))
    for source in known.sources:
        if isinstance(source, Package):
            assert source.size > 0
            assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in source.files)


def test_the_regenerated_set_is_never_taken_for_the_official_one():
    known = entry("hans-regenerated")
    assert "NOT the official" in known.title
    assert "NOT the official" in known.note


def test_the_damaged_copy_of_the_credit_data_is_not_offered():
    assert not any(isinstance(source, FromPip) for source in entry("credit").sources)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("contraceptoin", "Did you mean contraception or"), ("mnli_hard", "mnli-hard-matched or")],
)
def test_an_unknown_name_suggests_similar_ones(name, hint):
    with pytest.raises(DataError, match=re.escape(hint)):
        entry(name)


def test_a_name_like_no_other_gives_the_list():
    with pytest.raises(
        DataError, match=r"'zzz'\. `python -m benchmarks.datasets list` shows all names"
    ):
        load("zzz")


def test_parts_and_variants_are_those_listed():
    with pytest.raises(DataError, match=r"part: expected one of 'train', 'test', found 'dev'"):
        load("mnist", part="dev")
    with pytest.raises(DataError, match=r"variant: expected one of 'plain', 'text', 'code'"):
        load("credit", variant="both")
    with pytest.raises(DataError, match=r"credit: part: expected no part, found 'train'"):
        load("credit", part="train")


def test_what_is_no_set_of_records_does_not_load():
    with pytest.raises(DataError, match="benchmarks.datasets fetch resnet-cifar10-weights"):
        load("resnet-cifar10-weights")


def test_schemas_of_tables_have_their_name():
    dataset = {name: known.schema() for name, known in CATALOG.items() if known.schema}
    assert {"german-credit", "credit", "adult", "cover-types"} <= set(dataset)
    assert all(schema.name == name for name, schema in dataset.items())


# ---------------------------------------------------------------- sets in the user's folder


@pytest.mark.parametrize("name", KEPT)
def test_files_in_the_folder_are_the_published_ones(name, shared_data):
    try:
        dataset = fetch(name, folder=shared_data)
    except FetchError as reason:
        pytest.skip(str(reason))
    assert fetch(name, folder=shared_data, verify=True) == dataset


LOADED = [
    ("credit", None, None, (653, 46), 2),
    ("credit", None, "text", (653, 46), 2),
    ("contraception", None, None, (1473, 9), 3),
    ("mammography", None, None, (830, 5), 2),
    ("dermatology", None, None, (358, 34), 6),
    ("dermatology", None, "code", (358, 34), 2),
    ("chest-xray", "test", None, (624, 128, 128), 3),
    ("sst2", "dev", None, (872, 1), 2),
    ("mrpc", None, None, (3667, 2), 2),
    ("mrpc", "test", None, (1725, 2), 2),
    ("rte", "dev", None, (277, 2), 2),
    ("wnli", None, None, (635, 2), 2),
    ("qnli", None, None, (5463, 2), 2),
    ("mnli", None, None, (9815, 2), 3),
    ("mnli-hard-matched", None, None, (4573, 2), 3),
    ("mnli-hard-mismatched", None, None, (4530, 2), 3),
    ("snli", None, None, (9842, 2), 3),
    ("snli", "test", None, (9824, 2), 3),
    ("scitail", None, None, (2126, 2), 2),
    ("rte-nli", None, None, (2767, 2), 2),
    ("hans-regenerated", None, None, (30_000, 2), 2),
]


@pytest.mark.parametrize(("name", "part", "variant", "shape", "k"), LOADED)
def test_sets_in_the_folder_load(name, part, variant, shape, k, shared_data):
    source = entry(name).sources[0]
    if source.locate(shared_data) is None:
        pytest.skip(f"VERACAL_DATA has no {source}")
    dataset = load(name, part=part, variant=variant, folder=shared_data)
    assert (dataset.X.shape, dataset.n_classes) == (shape, k)
    check_declared(dataset, set_name=name, part=part, variant=variant)


def test_every_set_that_can_be_here_is_among_these():
    loadable = {name for name in KEPT if CATALOG[name].loader}
    assert {row[0] for row in LOADED} == loadable


def test_limits_reach_the_loader(shared_data):
    with pytest.raises(LimitError):
        load("rte", part="dev", folder=shared_data, limits=Limits(file_bytes=1000))


def test_progress_reaches_the_loader(shared_data):
    steps = []
    load("rte", part="dev", folder=shared_data, progress=lambda *step: steps.append(step))
    assert steps[-1][0] == steps[-1][1] > 0


# ---------------------------------------------------------------- forms that cannot be had here


def write(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def jpeg(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, shade, shade)).save(file, "JPEG")
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


PAIR = (
    "index\tquestion\tsentence\tlabel\n0\twho?\tme\tentailment\n1\twhere?\tno\tnot_entailment\n"
)
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
QQP += "1\t1\t2\ta?\tb?\t0\n2\t3\t4\tc?\tc?\t1\n"
MNLI = "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\tneutral\n"
MNLI += "1\tc\td\tentailment\tentailment\n"

FORMS = {
    "mnist": (
        {
            "mnist/t10k-images-idx3-ubyte": idx(np.zeros((2, 28, 28), np.uint8)),
            "mnist/t10k-labels-idx1-ubyte": idx(np.array([1, 2], np.uint8)),
            "mnist/train-images-idx3-ubyte": idx(np.zeros((3, 28, 28), np.uint8)),
            "mnist/train-labels-idx1-ubyte": idx(np.array([1, 2, 9], np.uint8)),
        },
        None,
        (3, 28, 28),
        [1, 2, 9],
    ),
    "cifar10": (
        {
            **{
                f"cifar-10-batches-bin/data_batch_{i}.bin": bytes([i]) + bytes(3072)
                for i in range(1, 6)
            },
            "cifar-10-batches-bin/test_batch.bin": bytes([3]) + bytes(3072),
        },
        None,
        (5, 32, 32, 3),
        ["automobile", "bird", "cat", "deer", "dog"],
    ),
    "cifar100": (
        {
            "cifar-100-binary/train.bin": bytes([4, 0, *bytes(3072), 11, 19, *bytes(3072)]),
            "cifar-100-binary/test.bin": bytes([4, 0, *bytes(3072)]),
        },
        None,
        (2, 32, 32, 3),
        ["apple", "cattle"],
    ),
    "cifar10-c": (
        {
            "CIFAR-10-C/fog.npy": npy(np.zeros((10, 32, 32, 3), np.uint8)),
            "CIFAR-10-C/labels.npy": npy(np.array([0, 1] * 5)),
        },
        "fog-5",
        (2, 32, 32, 3),
        ["airplane", "automobile"],
    ),
    "sun397": (
        {
            "SUN397/a/abbey/sun_aa.jpg": jpeg(10),
            "SUN397/a/alley/sun_ab.jpg": jpeg(20),
            "SUN397/ClassName.txt": "/a/abbey\n/a/alley\n",
            "SUN397/a/alley/sun_ac.jpg": jpeg(30),
            "SUN397/Training_02.txt": "/a/alley/sun_ab.jpg\n/a/abbey/sun_aa.jpg\n",
        },
        "02",
        (2, 224, 224, 3),
        ["/a/abbey", "/a/alley"],
    ),
    "food101": (
        {
            "food-101/images/apple_pie/1.jpg": jpeg(10),
            "food-101/images/waffles/2.jpg": jpeg(20),
            "food-101/images/waffles/3.jpg": jpeg(30),
            "food-101/meta/classes.txt": "apple_pie\nwaffles\n",
            "food-101/meta/train.txt": "waffles/2\napple_pie/1\n",
        },
        None,
        (2, 224, 224, 3),
        ["apple_pie", "waffles"],
    ),
    "chest-xray": (
        {
            "chest_xray/train/NORMAL/IM-0115-0001.jpeg": jpeg(10),
            "chest_xray/train/PNEUMONIA/person1_virus_6.jpeg": jpeg(20),
            "chest_xray/test/NORMAL/IM-0001-0001.jpeg": jpeg(10),
        },
        None,
        (2, 128, 128),
        ["normal", "viral"],
    ),
    "qnli-train": (
        {"glue/QNLI/train.tsv": PAIR},
        None,
        (2, 2),
        ["entailment", "not_entailment"],
    ),
    "qqp": (
        {"glue/QQP/train.tsv": QQP, "glue/QQP/dev.tsv": QQP},
        None,
        (2, 2),
        ["different", "duplicate"],
    ),
    "mnli-train": ({"glue/MNLI/train.tsv": MNLI}, None, (2, 2), ["neutral", "entailment"]),
    "sentiment-nyt": (
        {"sentiment/nytEditorialSnippets_GroundTruth.txt": "1_1\t-0.5\tbad\n1_2\t0.5\tgood\n"},
        None,
        (2, 1),
        ["negative", "positive"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_small_sets_of_a_published_form_load_by_name(name, tmp_path):
    files, variant, shape, labels = FORMS[name]
    folder = write(tmp_path / "data", files)
    dataset = load(name, variant=variant, folder=folder)
    assert dataset.X.shape == shape
    assert dataset.labels.tolist() == labels
    check_declared(dataset, set_name=name, variant=variant)


def test_every_form_is_among_these():
    """Every set that only a folder can hold is loaded at least once above."""
    only_elsewhere = {
        name
        for name, known in CATALOG.items()
        if all(isinstance(source, FromFolder) and source.needs for source in known.sources)
    }
    assert only_elsewhere <= set(FORMS)


def test_whatever_loads_is_declared_without_a_file_or_the_network(monkeypatch):
    """So that a run on it can be refused before a record is read, or fetched."""

    def refuse(*_, **__):
        raise AssertionError("something was opened")

    monkeypatch.setattr("benchmarks.datasets.downloads.obtain", refuse)
    monkeypatch.setattr("veracal.data.files.open_file", refuse)
    for known in CATALOG.values():
        if known.loader is None:
            with pytest.raises(DataError, match="a set of records"):
                known.declare(DatasetRequest())
            continue
        for part in known.parts or (None,):
            for variant in known.variants or (None,):
                declared = known.declare(DatasetRequest(part=part, variant=variant))
                assert len(declared) == 0 and declared.size is not None
                assert len(declared.classes) > 1


def test_sets_of_the_package_load_too():
    assert load("wine").X.shape == (178, 13)


def test_a_request_names_the_default_part(tmp_path):
    write(tmp_path, FORMS["mnist"][0])
    assert len(entry("mnist").load(DatasetRequest(folder=tmp_path))) == 3
    assert len(entry("mnist").load(DatasetRequest(folder=tmp_path, part="test"))) == 2
