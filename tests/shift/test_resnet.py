"""The networks are those the weights were published for, quick ones as slow ones."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from benchmarks.datasets import FetchError
from benchmarks.shift import weights as weight_cache
from benchmarks.shift.resnet import (
    DEPTHS,
    DEVIATION,
    MEAN,
    Block,
    ResNet,
    folded,
    logits_of,
    network,
    normalized,
)
from benchmarks.shift.weights import converted, digest, published, weights


@pytest.fixture
def make_images(rng):
    return rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path))
    return tmp_path / "shift"


def trained(depth: int) -> ResNet:
    """A network whose batch norms have seen something, so that folding them matters."""
    torch.manual_seed(depth)
    built = ResNet(depth)
    for part in built.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.3)
            nn.init.uniform_(part.running_var, 0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.3)
    return built.eval()


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet20", 0.27), ("resnet32", 0.46), ("resnet44", 0.66), ("resnet56", 0.85)],
)
def test_networks_have_as_many_weights_as_he_et_al_print(name, millions):
    built = ResNet(DEPTHS[name])
    assert round(sum(part.numel() for part in built.parameters()) / 1e6, 2) == millions
    layers = [part for part in built.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    assert len(layers) == DEPTHS[name]


def test_the_shortcut_takes_every_second_pixel_and_pads_channels_evenly():
    block = Block(4, 8).eval()
    nn.init.zeros_(block.bn2.weight)  # leaves the shortcut alone
    x = torch.rand(2, 4, 6, 6)
    with torch.no_grad():
        found = block(x)
    assert found.shape == (2, 8, 3, 3)
    assert (found[:, 2:6] == x[:, :, ::2, ::2]).all()
    assert (found[:, :2] == 0).all() and (found[:, 6:] == 0).all()


def test_pictures_are_normalized_channel_by_channel(make_images):
    slow = (make_images / 255 - np.array(MEAN)) / np.array(DEVIATION)
    found = normalized(make_images)
    assert found.shape == (5, 3, 32, 32) and found.dtype == torch.float32
    assert found.numpy() == pytest.approx(slow.transpose(0, 3, 1, 2), abs=1e-5)


def written_out(state, depth, x):
    """He et al. 2016, section 4.2, layer by layer from named weights."""

    def layer(x, conv, norm, stride=1):
        x = functional.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=1)
        mean, var = state[f"{norm}.running_mean"], state[f"{norm}.running_var"]
        scale = state[f"{norm}.weight"] / (var + 1e-5).sqrt()
        shape = (1, -1, 1, 1)
        return (x - mean.view(shape)) * scale.view(shape) + state[f"{norm}.bias"].view(shape)

    x = layer(x, "conv1", "bn1").clamp(min=0)
    for stage in (1, 2, 3):
        for block in range((depth - 2) // 6):
            name, halved = f"layer{stage}.{block}", stage > 1 and block == 0
            y = layer(x, f"{name}.conv1", f"{name}.bn1", 2 if halved else 1).clamp(min=0)
            y = layer(y, f"{name}.conv2", f"{name}.bn2")
            if halved:
                none = torch.zeros(len(x), x.shape[1] // 2, *y.shape[2:])
                x = torch.cat([none, x[:, :, ::2, ::2], none], dim=1)
            x = (x + y).clamp(min=0)
    return x.mean(dim=(2, 3)) @ state["linear.weight"].T + state["linear.bias"]


@pytest.mark.parametrize("depth", [20, 32])
def test_a_network_is_what_is_written_out(make_images, depth):
    built = trained(depth)
    with torch.no_grad():
        found = built(normalized(make_images)).numpy()
        slow = written_out(built.state_dict(), depth, normalized(make_images)).numpy()
    assert found == pytest.approx(slow, rel=1e-3, abs=1e-3)


def test_folding_keeps_the_answers(make_images):
    plain = trained(20)
    with torch.no_grad():
        slow = plain(normalized(make_images)).numpy()
    quick = logits_of(network("resnet20", trained(20).state_dict()), make_images)
    assert quick.shape == (5, 10) and quick.dtype == np.float32
    assert quick == pytest.approx(slow, rel=1e-4, abs=1e-4)
    assert np.ptp(slow, axis=0).min() > 0  # images are distinguished
    left = [part for part in folded(plain).modules() if isinstance(part, nn.BatchNorm2d)]
    assert left == []


def test_batches_do_not_matter(make_images, monkeypatch):
    built = network("resnet20", trained(20).state_dict())
    whole = logits_of(built, make_images)
    monkeypatch.setattr("benchmarks.shift.resnet._BATCH", 2)
    assert logits_of(built, make_images) == pytest.approx(whole, rel=1e-4, abs=1e-5)


def pickled(state: dict[str, torch.Tensor], place) -> None:
    wrapped = {f"module.{name}": value for name, value in state.items()}
    torch.save({"best_prec1": 91.0, "state_dict": wrapped}, place)


def test_conversion_keeps_every_number(tmp_path):
    state = trained(20).state_dict()
    pickled(state, tmp_path / "net.th")
    found = converted(tmp_path / "net.th")
    wanted = {name for name in state if not name.endswith("num_batches_tracked")}
    assert set(found) == wanted
    assert all((found[name] == state[name]).all() for name in wanted)


def test_conversion_runs_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return (print, ("sprung",))

    torch.save({"state_dict": {"module.a": Trap()}}, tmp_path / "net.th")
    with pytest.raises(Exception, match="Weights only load failed"):
        converted(tmp_path / "net.th")


def test_published_weights_round_trip(data_folder, cache, monkeypatch):
    source = data_folder("resnet_cifar10_weights") / published("resnet20").path
    first = weights("resnet20")
    place = cache / "resnet20.safetensors"
    assert set(load_file(place)) == set(converted(source)) == set(first)
    ResNet(20).load_state_dict(first, strict=False)

    monkeypatch.setattr(weight_cache, "converted", lambda _: pytest.fail("converted again"))
    again = weights("resnet20")
    assert all((again[name] == first[name]).all() for name in first)


@pytest.mark.parametrize("harm", ["cut", "flipped"])
def test_harmed_weights_are_converted_anew(data_folder, cache, harm):
    data_folder("resnet_cifar10_weights")
    first = weights("resnet20")
    place = cache / "resnet20.safetensors"
    whole = bytearray(place.read_bytes())
    place.write_bytes(whole[:-100] if harm == "cut" else whole[:-1] + bytes([whole[-1] ^ 1]))
    again = weights("resnet20")
    assert all((again[name] == first[name]).all() for name in first)
    assert digest(load_file(place)) == digest(first)  # restored


def test_weights_with_another_checksum_are_refused(tmp_path, cache, monkeypatch):
    held = tmp_path / "data" / "resnet_cifar10_weights"
    held.mkdir(parents=True)
    for name in DEPTHS:
        file = published(name)
        (held / file.path).write_bytes(bytes(file.size))
    monkeypatch.setenv("VERACAL_DATA", str(tmp_path / "data"))
    with pytest.raises(FetchError):
        weights("resnet20")
    assert not cache.exists()
