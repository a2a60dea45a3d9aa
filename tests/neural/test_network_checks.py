"""Checks of networks before anything is charged, and replacements of rejected layers."""

import threading
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from opacus import GradSampleModule, layers
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.neural.fits import RecordedSteps, Touchy, X, Y, model, network
from tests.neural.modules import pruned, weight_norm
from veracal.accounting import Budget
from veracal.calibration import PrivateCalibratedClassifier
from veracal.data import Dataset
from veracal.ledger import open_ledger
from veracal.neural import Ranks, replace_batch_norm
from veracal.neural import network as deep_network
from veracal.neural.architectures import mlp
from veracal.queries import Curator
from veracal.training import BoundedScaler, PrivateSearch, make_private_pipeline


def filled(layer, value):
    """A layer with constant weights."""
    nn.init.constant_(layer.weight, value)
    return layer


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
            "replace_batch_norm",
        ),
        (nn.Linear(4, 3), "2 logits"),
        (nn.Linear(4, 2).double(), "float32"),
        (nn.Linear(4, 2).requires_grad_(False), "trainable parameters"),
        (nn.LazyLinear(2), "which is lazy"),
        ("a network", "torch.nn.Module"),
        (nn.Sequential(nn.Linear(4, 2), nn.Softmax(dim=0)), "independently"),
        (filled(nn.Linear(4, 2), float("nan")), "finite parameters, got 'weight'"),
        (filled(nn.Linear(4, 2), float("inf")), "finite parameters, got 'weight'"),
        (nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten()), "sparse=True"),
    ],
    ids=[
        *("batchnorm", "shape", "double", "frozen", "lazy", "text", "mixes"),
        *("nan", "infinite", "sparse"),
    ],
)
def test_unsupported_modules_are_rejected_before_training(module, match):
    with pytest.raises(ValueError, match=match):
        model(module).fit(X, Y)


@pytest.mark.parametrize("inside", [torch.inference_mode, parametrize.cached])
def test_a_call_in_a_context_without_gradients_is_rejected(inside):
    with inside(), pytest.raises(ValueError, match=r"outside of torch.*Leave that context"):
        model().fit(X, Y)


def test_known_networks_are_tried_once_and_others_every_time(monkeypatch):
    tried, trial = [], deep_network.check_behavior
    monkeypatch.setattr(deep_network, "_PASSED_TRIALS", set())
    monkeypatch.setattr(
        deep_network, "check_behavior", lambda *given: (tried.append(1), trial(*given))[1]
    )
    known = partial(mlp, X.shape[1], 2, hidden=(3,))
    for _ in range(2):
        model(known).fit(X, Y)
    assert len(tried) == 1
    model(known, gradients="functional").fit(X, Y)  # which was not tried yet
    model(known).fit(X.astype(np.float64), Y)  # nor were such rows
    assert len(tried) == 3
    for own in ({"prepare": torch.from_numpy}, {"module": lambda: known()}):
        for _ in range(2):
            model(known).set_params(**own).fit(X.astype(np.float32), Y)
    assert len(tried) == 7
    with torch.inference_mode(), pytest.raises(ValueError, match="Leave that context"):
        model(known).fit(X, Y)


def test_gradients_are_computed_under_no_grad():
    with torch.no_grad():
        fitted = model().fit(X, Y)
    for one, other in zip(fitted.module_.parameters(), network().parameters(), strict=True):
        assert not torch.equal(one, other)


def test_inference_parameters_are_copied_or_rejected():
    with torch.inference_mode():
        built = network()
    model(built).fit(X, Y)
    with pytest.raises(ValueError, match=r"'0\.weight'.*copy\.deepcopy"):
        model(lambda: built).fit(X, Y)


def traced(module):
    return torch.jit.trace(module, torch.zeros(2, 4))


def distributed(module):
    """Wrapped without a process group, by hand."""
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = module
    return wrapped


def with_part(part):
    """A network with a modified layer."""
    module = network()
    part(module[0])
    return module


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (network().to("meta"), r"'0\.weight' on the device 'meta'.*to_empty"),
        (with_part(lambda one: one.to("meta").requires_grad_(False)), "'meta'"),
        (
            with_part(lambda one: one.register_buffer("b", torch.ones(1, device="meta"))),
            r"'0\.b'",
        ),
        (nn.Sequential(nn.Linear(4, 3), nn.LazyLinear(2)), r"'1\.weight'.*synthetic rows"),
        (with_part(parametrizations.spectral_norm), "remove_parametrizations"),
        (with_part(nn.utils.spectral_norm), "remove_spectral_norm"),
        (
            with_part(lambda one: prune.identity(one, "weight")),
            r"'0\.weight'.*no_grad.*prune\.remove",
        ),
        (
            with_part(lambda one: setattr(one, "lock", threading.Lock())),
            "deepcopy fails.*locks",
        ),
    ],
    ids=[
        "meta",
        "frozen on meta",
        "buffer on meta",
        "lazy",
        "spectral",
        "spectral hook",
        "pruned",
        "lock",
    ],
)
def test_uninitialized_or_uncopyable_modules_are_rejected_with_a_remedy(
    module, match, tmp_path
):
    ledger = open_ledger(tmp_path / "a.ledger", Budget(50.0, 1e-3), kind="open")
    holder = Curator(Dataset(X, Y, (0, 1), size=60), ledger)
    with pytest.raises(ValueError, match=match):
        holder.fit(model(module, gradients=None, random_state=None))
    assert not list(ledger.entries())


WRAPPED = {  # around a module, or a layer of it; what is said of it, and what it was around
    "compiled": (partial(torch.compile, backend="eager"), r"torch\.compile", r"\._orig_mod"),
    "parallel": (nn.DataParallel, r"nn\.DataParallel", r"\.module"),
    "distributed": (distributed, "DistributedDataParallel", r"\.module"),
    "opacus": (GradSampleModule, "GradSampleModule", r"\.to_standard_module\(\)"),
    "scripted": (torch.jit.script, r"torch\.jit", " was scripted or traced from"),
    "traced": (traced, r"torch\.jit", " was scripted or traced from"),
}


@pytest.mark.parametrize("how", WRAPPED)
@pytest.mark.filterwarnings("ignore:.*(non-full backward hook|torch.jit)")
def test_a_wrapped_module_is_rejected_with_the_inner_module_named(how, tmp_path):
    wrap, by, inside = WRAPPED[how]
    ledger = open_ledger(tmp_path / "a.ledger", Budget(50.0, 1e-3), kind="open")
    holder = Curator(Dataset(X, Y, (0, 1), size=60), ledger)
    settings = {"gradients": None, "random_state": None}
    with pytest.raises(ValueError, match=f"wrapped by {by}.* inside: .*module{inside}"):
        holder.fit(model(wrap(network()), **settings))
    outer = nn.Sequential(wrap(network()), nn.Linear(2, 2))
    with pytest.raises(
        ValueError, match=rf"'0', wrapped by {by}.*get_submodule\('0'\){inside}"
    ):
        holder.fit(model(outer, **settings))
    with pytest.raises(ValueError, match=f"wrapped by {by}"):
        holder.fit(model(lambda: wrap(network()), **settings))
    assert not list(ledger.entries())


@pytest.mark.filterwarnings("ignore:.*(non-full backward hook|torch.jit)")
def test_unwrapped_modules_and_wrapped_frozen_parts_are_trained():
    for inside in (
        torch.compile(network(), backend="eager")._orig_mod,
        nn.DataParallel(network()).module,
        GradSampleModule(network()).to_standard_module(),
    ):
        assert set(model(inside).fit(X, Y).module_.state_dict()) == set(network().state_dict())
    with pytest.raises(ValueError, match=r"hooks of Opacus.*to_standard_module\(\)"):
        model(GradSampleModule(network())._module).fit(X, Y)
    frozen = torch.jit.script(nn.Linear(4, 4).requires_grad_(False))
    assert model(nn.Sequential(frozen, nn.Linear(4, 2))).fit(X, Y).n_iter_ == 4


class Series(nn.Module):
    """The last state of a recurrent layer, or of a cell that is called for each step."""

    def __init__(self, layer, ways=1):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(6 * ways, 2)

    def forward(self, x):
        if not type(self.layer).__name__.endswith("Cell"):
            return self.head(self.layer(x[..., None])[0][:, -1])
        state = torch.zeros(len(x), 6)
        both = (state, state) if "LSTM" in type(self.layer).__name__ else state
        for one in x.T[..., None]:
            both = self.layer(one, both)
        return self.head(both[0] if isinstance(both, tuple) else both)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_are_rejected_with_a_supported_replacement(kind, tmp_path):
    ledger = open_ledger(tmp_path / "a.ledger", Budget(50.0, 1e-3), kind="open")
    holder = Curator(Dataset(X, Y, (0, 1), size=60), ledger)
    layer, cell = getattr(nn, kind)(1, 6, batch_first=True), getattr(nn, f"{kind}Cell")(1, 6)
    # One way alone: torch.func takes a plain LSTM as it is.
    for way, one in (("ghost", layer), ("hooks", layer), (None, cell)):
        said = (
            rf"per-example gradients, got 'layer', an nn\.{kind}.*"
            rf"Use opacus\.layers\..*DP{kind}"
        )
        with pytest.raises(ValueError, match=said):
            holder.fit(model(Series(one), gradients=way, random_state=None))
    assert not list(ledger.entries())


@pytest.mark.parametrize("kind", ["RNN", "GRU"])
def test_recurrent_layers_are_rejected_after_all_engines_were_tried(kind):
    with pytest.raises(ValueError, match=rf"ghost: .*functional: .*hooks: .*DP{kind} with the"):
        model(Series(getattr(nn, kind)(1, 6, batch_first=True)), gradients=None).fit(X, Y)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_replacement_recurrent_layers_compute_the_same_and_are_trained(kind):
    settings = {"batch_first": True, "num_layers": 2, "bidirectional": True}
    old, new = (
        getattr(nn, kind)(1, 6, **settings),
        getattr(layers, f"DP{kind}")(1, 6, **settings),
    )
    new.load_state_dict(old.state_dict())
    rows = torch.from_numpy(X)[..., None]
    torch.testing.assert_close(new(rows)[0], old(rows)[0])
    cell = getattr(layers.dp_rnn, f"DP{kind}Cell")(1, 6, bias=True)
    for module in (Series(new, ways=2), Series(cell)):
        fitted = model(module, gradients=None).fit(X, Y)
        assert fitted.trial_.chosen == "functional" and not fitted.self_check_.unchanged


def test_reparametrized_weights_are_trained():
    rows = torch.tensor(np.pad(X, ((0, 0), (0, 2))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        old = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 3)))
    settings = {"gradients": None, "classes": [0, 1, 2]}
    for module in (weight_norm(), pruned(), old):
        with torch.no_grad():
            module(rows)
        fitted = model(module, **settings).fit(rows.numpy(), Y)
        assert fitted.trial_.chosen == "functional"
        assert not fitted.self_check_.unchanged


def test_pruned_weights_stay_zero():
    module = prune.l1_unstructured(nn.Linear(4, 2), "weight", 0.5)
    with pytest.raises(ValueError, match=r"prune\.remove"):  # where it is cloned, too
        PrivateCalibratedClassifier(model(module), epsilon=1.0, size=60).fit(X, Y)
    with torch.no_grad():
        module(torch.tensor(X))
    result = model(module, gradients=None).fit(X, Y).module_
    zero = result.weight_mask == 0
    assert int(zero.sum()) == 4 and bool((result.weight == 0)[zero].all())
    assert torch.equal(result.weight[~zero], result.weight_orig.detach()[~zero])
    prune.remove(module, "weight")
    assert bool((model(module).fit(X, Y).module_.weight != 0).all())


class Centered(nn.Module):
    """Mixes examples in training mode, or always."""

    def __init__(self, always):
        super().__init__()
        self.line, self.always = nn.Linear(4, 2), always

    def forward(self, x):
        return self.line(x - x.mean(0) if self.training or self.always else x)


@pytest.mark.parametrize("always", [True, False])
def test_a_module_that_mixes_examples_is_rejected_even_if_only_in_training(always):
    with pytest.raises(ValueError, match="independently"):
        model(Centered(always)).fit(X, Y)


def test_a_prepare_that_centers_rows_is_rejected():
    def centered(rows):
        return torch.from_numpy((rows - rows.mean(0)).astype(np.float32))

    with pytest.raises(ValueError, match="prepare"):
        model(prepare=centered).fit(X, Y)


def test_the_number_of_views_is_checked_before_a_charge():
    class Lost:
        views = 3

        def __call__(self, inputs, rng):
            return inputs

    with pytest.raises(ValueError, match="3 views"):
        model(augment=Lost()).fit(X, Y)


@pytest.mark.parametrize("gradients", ["ghost", "hooks"])
def test_a_record_for_which_the_module_fails_adds_nothing_and_is_not_reported(gradients):
    rows, module = X.copy(), Touchy()
    rows[7] = 61.25
    others = np.arange(60) != 7
    whole, rest = RecordedSteps(), RecordedSteps()
    settings = {"sampling_rate": 1.0, "steps": 2, "gradients": gradients, "clip": 0.3}
    fitted = model(module, on_step=whole, **settings).fit(rows, Y)
    assert fitted.internal_.nonfinite == 2 and fitted.internal_.examples == 120
    model(module, on_step=rest, **settings).fit(rows[others], Y[others])
    for one, other in zip(whole.steps, rest.steps, strict=True):
        np.testing.assert_allclose(one.noisy_sum, other.noisy_sum, atol=1e-4)
    assert not any(hasattr(layer, "activations") for layer in fitted.module_.modules())


def test_a_hook_that_seeds_torch_does_not_fix_dropout_masks():
    """With fixed draws, removing a record would change the masks of all others."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 30), nn.Dropout(0.5), nn.Linear(30, 2))
    result = []
    for _ in range(2):
        seen = RecordedSteps()

        def hook(model, step, seen=seen):
            torch.manual_seed(0)
            seen(model, step)

        settings = {
            "sampling_rate": 1.0,
            "steps": 2,
            "noise_multiplier": 1e-6,
            "optimizer": 1e-9,
        }
        with pytest.warns(UserWarning, match="did not change"):
            model(module, on_step=hook, random_state=None, **settings).fit(X, Y)
        result.append(seen.steps[1].noisy_sum)
    assert np.linalg.norm(result[0] - result[1]) > 0.01


class Hoards(nn.Module):
    """Stores its inputs."""

    def __init__(self):
        super().__init__()
        self.line, self.seen = nn.Linear(4, 2), []

    def forward(self, x):
        self.seen.append(x.detach())
        return self.line(x)


def test_the_released_module_stores_no_record():
    rows = X + 100  # synthetic rows have no such values
    kept = model(Hoards()).fit(rows, Y).module_.seen
    assert kept and not any(bool((one > 50).any()) for one in kept)


class Counts(nn.Module):
    """Keeps a running mean of its inputs, and has an unused parameter."""

    def __init__(self, keeps, unused):
        super().__init__()
        self.line = nn.Linear(4, 2)
        self.keeps = keeps
        self.register_buffer("seen", torch.zeros(4))
        if unused:
            self.never = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        if self.training and self.keeps:
            self.seen += x.detach().mean(0)
        return self.line(x)


def test_state_and_unused_parameters_are_rejected():
    with pytest.raises(ValueError, match="changes 'seen'"):
        model(Counts(True, False)).fit(X, Y)
    with pytest.raises(ValueError, match="'never'"):
        model(Counts(False, True)).fit(X, Y)
    model(Counts(False, False)).fit(X, Y)


def test_a_rejection_charges_nothing(tmp_path):
    ledger = open_ledger(tmp_path / "a.ledger", Budget(50.0, 1e-3), kind="open")
    holder = Curator(Dataset(X, Y, (0, 1), size=60), ledger)
    with pytest.raises(ValueError, match="BatchNorm"):
        holder.fit(model(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), random_state=None))
    assert not list(ledger.entries())


def test_the_batch_norm_replacement_keeps_its_input():
    plain = replace_batch_norm(
        nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    )
    assert isinstance(plain[1], nn.LayerNorm)
    picture = replace_batch_norm(nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)))
    assert isinstance(picture[1], nn.GroupNorm) and picture[1].num_groups == 3
    assert float(plain(torch.tensor(X)).detach().std()) > 0.01
    model(plain).fit(X, Y)


def test_the_batch_norm_replacement_for_series_accepts_series():
    torch.manual_seed(0)
    series = nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 6, 2), nn.BatchNorm1d(6), nn.Flatten()
    )
    module = nn.Sequential(series, nn.Linear(18, 2))
    changed = replace_batch_norm(module)
    norm = changed[0][2]
    assert isinstance(norm, nn.GroupNorm) and norm.num_groups == 3
    assert changed(torch.tensor(X)).shape == (60, 2)
    assert model(changed, gradients=None).fit(X, Y).trial_.wrong.keys() <= {"hooks"}


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 7)])
def test_the_batch_norm_replacement_without_context_accepts_rows_and_series(shape):
    """A single group: a LayerNorm on plain rows."""
    first, between = nn.BatchNorm1d(6), nn.Sequential(nn.Linear(6, 9), nn.ReLU())
    alone = replace_batch_norm(first)
    assert isinstance(replace_batch_norm(nn.Sequential(first, between))[0], nn.GroupNorm)
    after = replace_batch_norm(nn.Sequential(between, nn.BatchNorm1d(6)))[1]
    x = 3 + 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for norm in (alone, after):
        assert isinstance(norm, nn.GroupNorm) and norm.num_groups == 1
        expected = nn.functional.layer_norm(x, x.shape[1:])
        torch.testing.assert_close(norm(x), expected)


def test_a_frozen_backbone_keeps_its_statistics():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    module[:2].requires_grad_(False)
    fitted = model(module).fit(X, Y)
    assert torch.equal(fitted.module_[1].running_mean, module[1].running_mean)
    assert torch.equal(fitted.module_[0].weight, module[0].weight)
    assert not torch.equal(fitted.module_[3].weight, module[3].weight)


@pytest.mark.parametrize(
    "whole",
    [
        lambda one: PrivateCalibratedClassifier(one, epsilon=1.0, size=60),
        lambda one: make_private_pipeline(BoundedScaler(bounds=(-3, 3)), one),
        lambda one: PrivateSearch(one, [{"clip": 0.1}, {"clip": 1.0}]),
    ],
)
def test_distributed_and_checkpointed_networks_are_rejected_as_parts(whole, tmp_path):
    with pytest.raises(ValueError, match="this machine alone"):
        whole(model(across=Ranks(), size=60, random_state=None)).event()
    with pytest.raises(ValueError, match="without a checkpoint"):
        whole(model(checkpoint=tmp_path / "run", size=60)).event()
    assert whole(model(size=60)).event() is not None


def test_distributed_and_checkpointed_networks_are_rejected_for_an_audit(tmp_path):
    records = Dataset(X, Y, (0, 1), size=60)
    shared = model(across=Ranks(), size=60, random_state=None)
    with pytest.raises(ValueError, match="this machine alone"):
        shared.resolve_settings(records)
    with pytest.raises(ValueError, match="without a checkpoint"):
        model(checkpoint=tmp_path / "run").resolve_settings(records)
