"""Networks as private classifiers."""

import copy
import re

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from tests.training.deep.fits import RNG, SETTINGS, Seen, X, Y, model, network
from veracal.data import Dataset
from veracal.privacy import (
    SGD,
    Adam,
    Budget,
    Descent,
    Flat,
    GlobalAdapt,
    Holder,
    Langevin,
    Momentum,
    open_ledger,
)
from veracal.training import Moving, PrivateLogisticRegression
from veracal.training.deep import Pictures, PrivateNetwork, without_batch_norm
from veracal.training.deep.gradients.blocks import HalfAddedError, cross_entropy
from veracal.training.deep.gradients.ghost import Ghost
from veracal.training.deep.layout import Layout
from veracal.training.deep.records import Records, as_tensor
from veracal.training.deep.sums import Lane, NetworkSums


def test_one_step_is_the_definition():
    """Clip each gradient, add them up, add the noise, divide by the declared batch."""
    seen, start = Seen(), network()
    fitted = model(steps=1, sampling_rate=1.0, clip=0.5, update=0.1, on_step=seen).fit(X, Y)
    total = np.zeros(4 * 3 + 3 + 3 * 2 + 2)
    for x, y in zip(X, Y, strict=True):
        loss = nn.functional.cross_entropy(start(torch.tensor(x)[None]), torch.tensor([y]))
        found = torch.autograd.grad(loss, list(start.parameters()))
        gradient = np.concatenate([one.flatten().double().numpy() for one in found])
        total += gradient * min(1, 0.5 / np.linalg.norm(gradient))
    noise = seen.steps[0].noisy_sum - total
    assert np.abs(noise).max() < 5 * 0.5 and noise.std() > 0.5 * 0.6
    weights = np.concatenate([one.detach().flatten().numpy() for one in start.parameters()])
    moved = weights - 0.1 * seen.steps[0].noisy_sum / 60
    found = np.concatenate(
        [one.detach().flatten().numpy() for one in fitted.module_.parameters()]
    )
    np.testing.assert_allclose(found, moved, atol=1e-6)
    assert fitted.n_iter_ == 1


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    "update", [SGD(0.1), Momentum(0.1), Adam(0.01), Langevin(0.1, 1.0)], ids=repr
)
def test_the_event_is_that_of_a_linear_model_with_the_same_settings(update, relation):
    told = {
        **SETTINGS,
        "steps": 7,
        "sampling_rate": 0.2,
        "relation": relation,
        "update": update,
    }
    if isinstance(update, Langevin):
        told["noise_multiplier"] = None
    linear = PrivateLogisticRegression(**told)
    deep = PrivateNetwork(network(), **told)
    assert deep.event() == linear.event()
    assert deep.fit(X, Y).event_ == deep.event()
    assert deep.private_ and re.search("epsilon", deep.statement_.text())


@pytest.mark.parametrize("gradients", ["ghost", "functional", "hooks"])
@pytest.mark.parametrize("clip", [Flat(0.3), GlobalAdapt(0.3, 1.0)], ids=repr)
def test_neighbors_differ_by_the_bound_at_most(gradients, clip):
    """The same randomness on neighbors: the noise cancels in the first noisy sums."""
    told = {"sampling_rate": 1.0, "clip": clip, "steps": 1, "gradients": gradients}
    whole, part, other = Seen(), Seen(), Seen()
    model(on_step=whole, **told).fit(X, Y)
    model(on_step=part, **told).fit(X[:-1], Y[:-1])
    changed = X.copy()
    changed[-1] = 1e4
    model(on_step=other, **told).fit(changed, 1 - Y)
    sums = [one.steps[0].noisy_sum for one in (whole, part, other)]
    assert 0.01 < np.linalg.norm(sums[0] - sums[1]) <= 0.3
    assert np.linalg.norm(sums[0] - sums[2]) > 0.3  # the whole of the labels is another


@pytest.mark.parametrize("block", [1, 7, 60])
def test_blocks_change_nothing_but_rounding(block):
    whole, cut = Seen(), Seen()
    told = {"sampling_rate": 0.5, "clip": 0.3, "update": 0.1}
    model(block=64, on_step=whole, **told).fit(X, Y)
    model(block=block, on_step=cut, **told).fit(X, Y)
    for one, other in zip(whole.steps, cut.steps, strict=True):
        np.testing.assert_allclose(one.noisy_sum, other.noisy_sum, atol=5e-3)


@pytest.mark.parametrize("count", [0, 1, 59, 60])
def test_two_lanes_have_the_sums_of_one(count):
    module, twin = network(), network(1)
    layout, records = Layout(module), Records(X, Y)
    one, other = (Lane(each, Ghost(each, cross_entropy, 8)) for each in (module, twin))
    sums = [
        NetworkSums(lanes, records, 60.0, 8, rng=np.random.default_rng(0))
        for lanes in ([one], [one, other])
    ]
    rows, found = np.arange(count), []
    before = torch.get_num_threads()
    for each in sums:
        with each.threads():
            found.append(each(layout.read(module), rows, Flat(0.3)))
    np.testing.assert_allclose(found[0].total, found[1].total, atol=1e-12)
    assert sums[0].tally == sums[1].tally and sums[0].tally.seen == count
    assert torch.get_num_threads() == before


def test_a_block_is_cut_evenly_where_it_may_have_no_more():
    module, met = network(), []

    class Counted(Ghost):
        def add(self, block, clip, total):
            met.append(len(block))
            return super().add(block, clip, total)

    lanes = [Lane(module, Counted(module, cross_entropy, 8))]
    sums = NetworkSums(lanes, Records(X, Y), 8.0, 8, most=8, rng=np.random.default_rng(0))
    whole = NetworkSums(lanes, Records(X, Y), 60.0, 60, rng=np.random.default_rng(0))
    weights = Layout(module).read(module)
    found = sums(weights, np.arange(9), Flat(0.3))
    assert met == [5, 4]
    expected = whole(weights, np.arange(9), Flat(0.3))
    np.testing.assert_allclose(found.total, expected.total, atol=1e-6)


def test_a_sum_that_fails_half_way_ends_the_run():
    """Taken again one by one, its examples would be in the sum twice."""
    module = network()

    class Failing(Ghost):
        def _found(self, block):
            found = super()._found(block)
            first = next(iter(found))
            found[first] = Broken(found[first])
            return found

    class Broken:
        places = 1

        def __init__(self, inner):
            self.squares = inner.squares

        def weighted(self, factors, kept):
            raise RuntimeError("no memory")

    lanes = [Lane(module, Failing(module, cross_entropy, 8))]
    sums = NetworkSums(lanes, Records(X, Y), 8.0, 8, rng=np.random.default_rng(0))
    with pytest.raises(HalfAddedError):
        sums(Layout(module).read(module), np.arange(5), Flat(0.3))


def test_parameters_may_be_views_of_the_vector():
    module = network()
    layout = Layout(module)
    vector = layout.read(module)
    first, marks = vector.copy(), layout.marks(vector)
    layout.share(vector, module)
    vector += 1.0
    np.testing.assert_array_equal(layout.read(module), vector)
    place = layout.places[0]
    vector[place.start : place.end] = first[place.start : place.end]
    assert layout.unmoved(marks, vector) == (layout.places[0].name,)
    apart = {one.untyped_storage().data_ptr() for one in module.parameters()}
    assert len(apart) == len(layout.places)


def test_an_empty_batch_steps_with_noise():
    seen = Seen()
    fitted = model(sampling_rate=1e-9, steps=3, on_step=seen).fit(X, Y)
    assert fitted.internal_.seen == 0 and fitted.n_iter_ == 3
    assert all(np.linalg.norm(step.noisy_sum) > 0 for step in seen.steps)
    assert not np.array_equal(seen.steps[0].noisy_sum, seen.steps[1].noisy_sum)


def test_noise_is_never_that_of_torch():
    """Torch's generator may stand where it likes: the noise is another each time."""
    sums = []
    for _ in range(2):
        seen = Seen()
        torch.manual_seed(3)
        model(random_state=None, steps=1, sampling_rate=1e-9, on_step=seen).fit(X, Y)
        sums.append(seen.steps[0].noisy_sum)
    assert not np.array_equal(*sums)


def test_the_generator_of_torch_stays_where_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))).fit(X, Y)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), expected)


def test_a_record_that_is_not_finite_is_counted_and_adds_nothing():
    rows, labels = X.copy(), Y.copy()
    rows[3:5], labels[3:5] = 3e38, (0, 1)  # for one of them the network is wrong
    spoiled = Dataset(rows, labels, (0, 1), size=60)
    fitted = model(nn.Sequential(nn.Linear(4, 2)), sampling_rate=1.0).fit_records(spoiled)
    assert fitted.internal_.broken == 4 and fitted.internal_.seen == 240
    assert np.isfinite(fitted.logits(X)).all()


def test_the_module_that_was_given_stays_as_it_was():
    given = network()
    before = copy.deepcopy(given.state_dict())
    fitted = model(given).fit(X, Y)
    assert all(torch.equal(one, before[name]) for name, one in given.state_dict().items())
    assert list(fitted.module_.state_dict()) == list(before)
    assert not fitted.module_.training
    again = clone(fitted)
    assert not hasattr(again, "module_")


def test_a_function_makes_new_weights_for_every_fit():
    made = PrivateNetwork(lambda: nn.Linear(4, 2), **SETTINGS, steps=1, update=1e-5)
    first, second = (clone(made).fit(X, Y).module_.weight for _ in range(2))
    assert not torch.allclose(first, second, atol=1e-3)
    same = [clone(made).set_params(random_state=3).fit(X, Y).module_.weight for _ in range(2)]
    assert torch.equal(*same)


@pytest.mark.parametrize("outputs", [1, 2])
def test_it_learns_and_predicts_as_scikit_learn_does(outputs):
    rows = np.repeat(X, 20, axis=0)
    labels = np.where(np.repeat(Y, 20), "yes", "no")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))
    told = {"classes": ["no", "yes"], "size": 1200, "epsilon": 8.0, "random_state": 0}
    fitted = PrivateNetwork(module, **told, average=Moving(0.9)).fit(rows, labels)
    assert fitted.score(rows, labels) > 0.85
    logits = fitted.logits(X)
    assert logits.shape == (60, 2)
    np.testing.assert_allclose(fitted.predict_proba(X).sum(1), 1)
    np.testing.assert_allclose(fitted.decision_function(X), logits[:, 1] - logits[:, 0])
    assert list(fitted.classes_) == ["no", "yes"]
    assert not fitted.self_check_.problems
    with pytest.raises(ValueError, match="features"):
        fitted.predict(X[:, :3])


def test_a_rows_logits_are_its_own():
    fitted = model().fit(X, Y)
    whole = fitted.logits(X)
    for some in (slice(0, 1), slice(3, 30), slice(50, 60)):
        assert np.array_equal(fitted.logits(X[some]), whole[some])


def test_pictures_are_prepared_by_their_form():
    bytes_ = RNG.integers(0, 256, (30, 6, 6), np.uint8)
    assert as_tensor(bytes_).shape == (30, 1, 6, 6) and float(as_tensor(bytes_).max()) <= 1
    colored = Pictures((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))(np.full((2, 5, 4, 3), 255, np.uint8))
    assert colored.shape == (2, 3, 5, 4)
    assert float(colored[0, 2, 0, 0]) == pytest.approx((1 - 0.3) / 0.2)
    data = Dataset(bytes_, np.arange(30) % 2, ("a", "b"), size=30)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    fitted = model(module, classes=["a", "b"], size=30, delta=1e-3).fit_records(data)
    assert fitted.private_ is False  # a seed was given
    assert fitted.predict(bytes_).shape == (30,)


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
            "without_batch_norm",
        ),
        (nn.Linear(4, 3), "2 logits"),
        (nn.Linear(4, 2).double(), "float32"),
        (nn.Linear(4, 2).requires_grad_(False), "parameters to train"),
        (nn.LazyLinear(2), "has none yet"),
        ("a network", "torch.nn.Module"),
        (nn.Sequential(nn.Linear(4, 2), nn.Softmax(dim=0)), "by itself"),
    ],
    ids=["batchnorm", "shape", "double", "frozen", "lazy", "text", "mixes"],
)
def test_what_is_refused_before_training(module, match):
    with pytest.raises(ValueError, match=match):
        model(module).fit(X, Y)


class Centered(nn.Module):
    """Mixes examples while it is trained, or all the time."""

    def __init__(self, always):
        super().__init__()
        self.line, self.always = nn.Linear(4, 2), always

    def forward(self, x):
        return self.line(x - x.mean(0) if self.training or self.always else x)


@pytest.mark.parametrize("always", [True, False])
def test_a_module_that_mixes_examples_is_refused_even_if_only_in_training(always):
    with pytest.raises(ValueError, match="by itself"):
        model(Centered(always)).fit(X, Y)


def test_a_preparation_that_mixes_rows_is_refused():
    def centered(rows):
        return torch.from_numpy((rows - rows.mean(0)).astype(np.float32))

    with pytest.raises(ValueError, match="prepare"):
        model(prepare=centered).fit(X, Y)


def test_views_are_counted_before_anything_is_charged():
    class Lost:
        views = 3

        def __call__(self, inputs, rng):
            return inputs

    with pytest.raises(ValueError, match="3 views"):
        model(augment=Lost()).fit(X, Y)


class Touchy(nn.Module):
    """Fails for some values, and says which, or makes NaN of them."""

    def __init__(self, quiet=False):
        super().__init__()
        self.quiet = quiet
        self.line, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        hidden = self.line(x)
        if self.quiet:
            return self.head(hidden) * (50 - x.abs().amax(1, keepdim=True)).sqrt()
        assert float(x.abs().max()) < 50, f"value {float(x.abs().max())}"
        return self.head(hidden)


@pytest.mark.parametrize("gradients", ["ghost", "hooks"])
def test_a_record_for_which_a_module_fails_adds_nothing_and_is_not_told_of(gradients):
    rows, module = X.copy(), Touchy()
    rows[7] = 61.25
    others = np.arange(60) != 7
    whole, rest = Seen(), Seen()
    told = {"sampling_rate": 1.0, "steps": 2, "gradients": gradients, "clip": 0.3}
    fitted = model(module, on_step=whole, **told).fit(rows, Y)
    assert fitted.internal_.broken == 2 and fitted.internal_.seen == 120
    model(module, on_step=rest, **told).fit(rows[others], Y[others])
    for one, other in zip(whole.steps, rest.steps, strict=True):
        np.testing.assert_allclose(one.noisy_sum, other.noisy_sum, atol=1e-4)
    assert not any(hasattr(layer, "activations") for layer in fitted.module_.modules())


def test_a_hook_that_sets_the_generator_of_torch_does_not_set_dropout():
    """Known masks would be other ones for everybody once a record is gone."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 30), nn.Dropout(0.5), nn.Linear(30, 2))
    found = []
    for _ in range(2):
        seen = Seen()

        def hook(model, step, seen=seen):
            torch.manual_seed(0)
            seen(model, step)

        told = {"sampling_rate": 1.0, "steps": 2, "noise_multiplier": 1e-6, "update": 1e-9}
        with pytest.warns(UserWarning, match="did not move"):
            model(module, on_step=hook, random_state=None, **told).fit(X, Y)
        found.append(seen.steps[1].noisy_sum)
    assert np.linalg.norm(found[0] - found[1]) > 0.01


class Hoards(nn.Module):
    """Keeps what it has seen."""

    def __init__(self):
        super().__init__()
        self.line, self.seen = nn.Linear(4, 2), []

    def forward(self, x):
        self.seen.append(x.detach())
        return self.line(x)


def test_what_is_released_has_seen_no_record():
    rows = X + 100  # made-up rows have no such values
    kept = model(Hoards()).fit(rows, Y).module_.seen
    assert kept and not any(bool((one > 50).any()) for one in kept)


class Counts(nn.Module):
    """Keeps a running mean of what it has seen, and has a parameter that nobody uses."""

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


def test_state_and_unused_parameters_are_refused():
    with pytest.raises(ValueError, match="buffer 'seen'"):
        model(Counts(True, False)).fit(X, Y)
    with pytest.raises(ValueError, match="'never'"):
        model(Counts(False, True)).fit(X, Y)
    model(Counts(False, False)).fit(X, Y)


def test_a_refusal_charges_nothing(tmp_path):
    ledger = open_ledger(tmp_path / "a.ledger", Budget(50.0, 1e-3), kind="open")
    holder = Holder(Dataset(X, Y, (0, 1), size=60), ledger)
    with pytest.raises(ValueError, match="BatchNorm"):
        holder.fit(model(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), random_state=None))
    assert not list(ledger.entries())


def test_batch_norm_has_a_stand_in_that_does_not_erase_its_input():
    plain = without_batch_norm(
        nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    )
    assert isinstance(plain[1], nn.LayerNorm)
    picture = without_batch_norm(nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)))
    assert isinstance(picture[1], nn.GroupNorm) and picture[1].num_groups == 3
    assert float(plain(torch.tensor(X)).detach().std()) > 0.01
    model(plain).fit(X, Y)


def test_batch_norm_of_series_has_a_stand_in_that_takes_series():
    torch.manual_seed(0)
    series = nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 6, 2), nn.BatchNorm1d(6), nn.Flatten()
    )
    module = nn.Sequential(series, nn.Linear(18, 2))
    changed = without_batch_norm(module)
    norm = changed[0][2]
    assert isinstance(norm, nn.GroupNorm) and norm.num_groups == 3
    assert changed(torch.tensor(X)).shape == (60, 2)
    assert model(changed, gradients=None).fit(X, Y).trial_.wrong.keys() <= {"hooks"}


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 7)])
def test_batch_norm_after_anything_else_has_one_for_plain_rows_and_series(shape):
    """Of one group: on plain rows a LayerNorm."""
    first, between = nn.BatchNorm1d(6), nn.Sequential(nn.Linear(6, 9), nn.ReLU())
    alone = without_batch_norm(first)
    assert isinstance(without_batch_norm(nn.Sequential(first, between))[0], nn.GroupNorm)
    after = without_batch_norm(nn.Sequential(between, nn.BatchNorm1d(6)))[1]
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


@pytest.mark.parametrize("keep", ["clipping only", "noise only", "neither"])
def test_an_ablation_is_not_private_and_says_so(keep):
    fitted = model(not_private=keep, random_state=None, sampling_rate=0.02).fit(X, Y)
    assert not fitted.private_ and keep in fitted.statement_.text()
    without = keep != "noise only"
    assert (fitted.self_check_.noise < fitted.self_check_.least) == without


def test_a_run_that_a_hook_ends_is_charged_as_a_whole_and_promises_nothing():
    told = {"random_state": None, "sampling_rate": 1.0}
    stopped = model(on_step=lambda _, step: step.number == 1, **told).fit(X, Y)
    watched = model(on_step=lambda *_: None, **told).fit(X, Y)
    assert stopped.n_iter_ == 2 and watched.n_iter_ == 4
    assert stopped.event_ == watched.event_ == model(**told).event()
    assert not stopped.private_ and "ended by a hook" in stopped.not_private_because_[0]
    assert watched.private_


def test_views_are_averaged():
    class Turned:
        views = 2

        def __call__(self, inputs, rng):
            return torch.stack([inputs, -inputs], 1).flatten(0, 1)

    seen, plain = Seen(), Seen()
    told = {"sampling_rate": 1.0, "steps": 1, "clip": 100.0}
    module = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(module.weight)
    for changed, rows in (
        ({"augment": Turned(), "on_step": seen}, X),
        ({"on_step": plain}, X * 0),
    ):
        with pytest.warns(UserWarning, match="next to nothing"):
            model(module, **changed, **told).fit(rows, Y)
    # At zero weights the gradients of x and -x are opposite, and nothing is left but noise.
    np.testing.assert_allclose(seen.steps[0].noisy_sum, plain.steps[0].noisy_sum, atol=1e-4)


# ---------------------------------------------------------------- self-check


def test_missing_noise_is_noticed(monkeypatch):
    monkeypatch.setattr(Descent, "_perturbed", lambda self, total, std, ahead: total)
    with pytest.warns(UserWarning, match="noise that was paid for"):
        fitted = model(sampling_rate=0.02).fit(X, Y)
    assert fitted.self_check_.noise < fitted.self_check_.least


def test_a_network_that_answers_the_same_to_all_is_noticed():
    module = nn.Sequential(nn.Linear(4, 3), nn.Threshold(1e9, 0.0), nn.Linear(3, 2))
    with pytest.warns(UserWarning, match="same logits"):
        assert model(module).fit(X, Y).self_check_.constant


@pytest.mark.parametrize("how", ["fails", "not finite", "clip bound far above"])
def test_records_that_add_nothing_are_noticed_by_what_is_released(how):
    """Noise alone is taken for more once in fifty runs, of which the seed is none."""
    module, rows, clip = Touchy(how == "not finite"), X + 100, 1.0
    if how == "clip bound far above":
        module, rows, clip = network(), X, 1e4
    told = {"sampling_rate": 1.0, "clip": clip, "update": 1e-4}
    with pytest.warns(UserWarning, match="next to nothing"):
        fitted = model(module, **told).fit_records(Dataset(rows, Y, (0, 1), size=60))
    assert fitted.self_check_.silent
    assert (fitted.internal_.broken == fitted.internal_.seen) == (clip == 1.0)


@pytest.mark.parametrize("steps", [1, 200])
def test_noise_that_leaves_nothing_to_be_seen_is_not_warned_of(steps):
    """Settings alone say that so few records would not show."""
    told = {"noise_multiplier": 50.0, "sampling_rate": 0.05, "update": 1e-4, "steps": steps}
    assert not model(**told).fit(X, Y).self_check_.problems
