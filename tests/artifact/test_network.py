"""Networks in artifacts: the same predictions after loading, and no code of a stranger's."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tests.artifact.examples import changed, replaced
from veracal.artifact import PrivateClassifier
from veracal.artifact.classifier import FrozenEncoder
from veracal.calibration import PrivateCalibratedClassifier
from veracal.data import Dataset
from veracal.errors import DataError, MissingExtraError
from veracal.neural import ImageScaler, MiniLM, PrivateNetwork
from veracal.neural.architectures import (
    KnownNetwork,
    dense_head,
    five_layer_cnn,
    mlp,
    mnist_cnn,
)

CLASSES = ("ill", "unknown", "well")
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (30, 8, 8), np.uint8)


def fitted(module, X, **more):
    model = PrivateNetwork(
        module,
        classes=CLASSES,
        size=30,
        steps=2,
        delta=1e-3,
        gradients="functional",
        random_state=0,
        **more,
    )
    data = Dataset(X, np.arange(len(X)) % 3, CLASSES, size=30)
    return model.fit_records(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, images):
    """An artifact that no test may change."""
    model = fitted(partial(five_layer_cnn, 3, side=8), images, prepare=ImageScaler(0.5, 0.25))
    return PrivateClassifier.of(model).save(tmp_path_factory.mktemp("network") / "a"), model


@pytest.fixture
def spoiled(folder, tmp_path):
    """A copy that a test may change."""
    return PrivateClassifier.load(folder[0]).save(tmp_path / "b")


def refused(folder, match, **own):
    with pytest.raises(DataError, match=match):
        PrivateClassifier.load(folder, **own)


def test_predictions_are_the_same_after_loading(folder, images):
    place, model = folder
    result = PrivateClassifier.load(place)
    assert np.array_equal(result.logits(images), model.logits(images))
    assert np.allclose(result.predict_proba(images), model.predict_proba(images), atol=1e-14)
    assert result.predict(images[:3]).tolist() == model.predict(images[:3]).tolist()
    assert result.weights.known == KnownNetwork("five_layer_cnn", {"classes": 3, "side": 8})
    assert result.weights.prepare == ImageScaler(0.5, 0.25)
    assert not result.private_  # a seed
    records = Dataset(images, np.zeros(30, int), CLASSES[::-1])
    logits = result.scores(records, mapped=False).values
    assert np.array_equal(logits, model.logits(images)[:, ::-1])


def test_a_calibrated_network_of_images(images, tmp_path):
    inner = PrivateNetwork(partial(five_layer_cnn, 3, side=8), gradients="functional", steps=2)
    model = PrivateCalibratedClassifier(
        inner, epsilon=8.0, delta=1e-3, classes=CLASSES, size=30, random_state=0
    ).fit(images, np.array(CLASSES)[np.arange(30) % 3])
    place = PrivateClassifier.of(model).save(tmp_path / "c")
    result = PrivateClassifier.load(place)
    assert np.array_equal(result.predict_proba(images), model.predict_proba(images))
    assert result.map_ == model.map_


def test_a_custom_module_needs_its_code(images, tmp_path):
    def module():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

    model = fitted(module, images, prepare=_halves)
    place = PrivateClassifier.of(model).save(tmp_path / "d")
    refused(place, "the module of its author")
    refused(place, "the function that prepares rows", module=module())
    refused(place, "0.weight|1.weight", module=nn.Linear(64, 3), prepare=_halves)
    given = module()
    before = given[1].weight.detach().clone()
    result = PrivateClassifier.load(place, module=given, prepare=_halves)
    assert np.array_equal(result.logits(images), model.logits(images))
    assert torch.equal(given[1].weight, before)  # a copy was filled
    assert PrivateClassifier.from_files(result.files(), "x", module=given, prepare=_halves)


def test_loading_computes_one_row_and_the_first_prediction_tests_the_positions(
    images, tmp_path
):
    rows = []

    class Counting(nn.Sequential):
        def forward(self, x):
            rows.append(len(x))
            return super().forward(x)

    def module():
        return Counting(nn.Flatten(), nn.Linear(64, 3))

    place = PrivateClassifier.of(fitted(module, images)).save(tmp_path / "e")
    rows.clear()
    result = PrivateClassifier.load(place, module=module())
    assert rows == [1]
    result.logits(images)
    assert len(rows) > 3 and max(rows) == 64


def _halves(rows):
    return torch.from_numpy(rows.astype(np.float32) / 2)


@pytest.mark.parametrize(
    ("maker", "settings"),
    [
        (mnist_cnn, {}),
        (partial(mnist_cnn, tanh=True), {"tanh": True}),
        (partial(mnist_cnn, hidden=(), from_zero=True), {"hidden": [], "from_zero": True}),
        (partial(mlp, 4, 3, hidden=(5, 6)), {"features": 4, "classes": 3, "hidden": [5, 6]}),
        (
            partial(mlp, 4, 3, activation=nn.ReLU),
            {"features": 4, "classes": 3, "activation": "ReLU"},
        ),
        (partial(dense_head, 7, classes=2), {"features": 7, "classes": 2}),
    ],
)
def test_built_in_preparations_are_stored_by_name(maker, settings):
    known = KnownNetwork.of(maker)
    assert dict(known.settings) == settings
    again = KnownNetwork.from_json(known.to_json(), "x")
    shapes = {name: one.shape for name, one in maker().state_dict().items()}
    assert {name: one.shape for name, one in again().state_dict().items()} == shapes


@pytest.mark.parametrize("maker", [nn.Linear(2, 2), partial(nn.Linear, 2), len])
def test_custom_preparations_are_not_stored(maker):
    assert KnownNetwork.of(maker) is None


@pytest.mark.parametrize(
    "written",
    [
        None,
        "own ",
        {"name": "mlp"},
        {"name": "exec", "settings": {}},
        {"name": "mlp", "settings": {"features": 4}},
        {"name": "mlp", "settings": {"features": 4, "classes": 3, "more": 1}},
        {"name": "mlp", "settings": {"features": 4, "classes": True}},
        {"name": "mlp", "settings": {"features": 4, "classes": 3, "hidden": [1] * 100}},
        {"name": "mlp", "settings": {"features": 1_000_000, "classes": 1_000_000}},
        {"name": "mlp", "settings": {"features": 10**12, "classes": 3}},
        {"name": "mlp", "settings": {"features": 4, "classes": 3, "activation": "os.system"}},
        {"name": "mlp", "settings": {"features": 4, "classes": 3, "activation": ["Tanh"]}},
        {"name": "mlp", "settings": {"features": 64, "classes": 4}},
        {"name": "minilm_texts", "settings": {"classes": 1_000_000}},
        {"name": "minilm_texts", "settings": {"classes": 3, "layers": 7}},
        {"name": "mnist_cnn", "settings": {"classes": -1}},
    ],
)
def test_unknown_networks_are_rejected(spoiled, written):
    changed(spoiled, lambda content: content["model"].update(network=written))
    refused(spoiled, "networks|a network")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("row", [64]),
        ("row", [8, 9]),
        ("row", []),
        ("row", [8.0, 8]),
        ("type", "object"),
        ("prepare", {"images": {"mean": 0.0}}),
        ("prepare", {"images": {"mean": "0", "std": 1.0}}),
        ("prepare", {"images": {"mean": 0.0, "std": 0.0}}),
        ("prepare", {"images": {"mean": 10**400, "std": 1.0}}),
        ("prepare", ["os", "system"]),
        ("kind", "networks"),
        ("noise", {}),
        ("encoder", {}),
    ],
)
def test_invalid_fields_are_rejected(spoiled, field, value):
    changed(spoiled, lambda content: content["model"].update({field: value}))
    with pytest.raises(DataError):
        PrivateClassifier.load(spoiled)


def test_weights_of_another_network_are_rejected(spoiled, folder):
    content = (spoiled / WEIGHTS).read_bytes()
    replaced(spoiled, content[:-4] + np.float32(np.nan).tobytes())
    refused(spoiled, "finite numbers")
    linear = PrivateClassifier.load(folder[0])
    changed(spoiled, lambda content: content["model"]["network"].update(name="mnist_cnn"))
    with pytest.raises(DataError):
        PrivateClassifier.load(spoiled)
    with pytest.raises(DataError, match="a known noise distribution"):
        linear.arbitrariness(np.zeros((1, 8, 8)))


def test_other_precisions_are_not_saved(images):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 3)
            self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))

        def forward(self, x):
            return self.linear(x.flatten(1))

    with pytest.raises(ValueError, match="float32"):
        PrivateClassifier.of(fitted(Counts, images)).files()


def test_texts_are_encoded_by_a_frozen_network(tmp_path):
    try:
        encoder = FrozenEncoder.of(MiniLM())
    except MissingExtraError as missing:
        pytest.skip(str(missing))
    texts = np.array([["a fine film"], ["dull"], ["no"]], dtype=np.dtypes.StringDType())
    data = Dataset(texts, np.arange(3), CLASSES, size=30)
    features = encoder.encode_dataset(data)
    model = fitted(partial(dense_head, 384, 3, hidden=4), features.X)
    place = PrivateClassifier.of(model, encoder=encoder).save(tmp_path / "t")
    result = PrivateClassifier.load(place)
    right = model.logits(features.X)
    for same in (texts, texts.tolist(), features.X):
        assert np.array_equal(result.logits(same), right)
    assert np.array_equal(result.scores(data, mapped=False).values, right)
    changed(place, lambda content: content["model"]["encoder"].update(weights="0" * 64))
    with pytest.raises(DataError, match="weights from training"):
        PrivateClassifier.load(place).predict_proba(texts)
    changed(
        place, lambda content: content["model"]["encoder"].update(name="efficientnet-lite0")
    )
    refused(place, "one of the encoders|weights from")


def test_a_huge_row_is_rejected(spoiled):
    def huge(content):
        content["features"] = 10**8
        content["model"].update(row=[10**8], type="float64")

    changed(spoiled, huge)
    refused(spoiled, "rows of")
