"""Networks as private classifiers."""

import copy
import pickle
import re

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from tests.neural.fits import RNG, SETTINGS, RecordedSteps, Touchy, X, Y, model, network
from veracal.data import Dataset
from veracal.mechanisms import DPSGD, SGD, Adam, Flat, GlobalAdapt, Langevin, Momentum
from veracal.neural import ImageScaler, PrivateNetwork
from veracal.neural.examples import IndexedRecords, as_tensor, cross_entropy
from veracal.neural.gradient_sums import Layout, NetworkSums, PartialSumError
from veracal.neural.gradients.engines import GhostEngine
from veracal.training import ExponentialAverage, PrivateLogisticRegression


def test_one_step_equals_its_definition():
    """Clip each gradient, sum, add the noise, divide by the declared batch."""
    seen, start = RecordedSteps(), network()
    fitted = model(steps=1, sampling_rate=1.0, clip=0.5, optimizer=0.1, on_step=seen).fit(X, Y)
    total = np.zeros(4 * 3 + 3 + 3 * 2 + 2)
    for x, y in zip(X, Y, strict=True):
        loss = nn.functional.cross_entropy(start(torch.tensor(x)[None]), torch.tensor([y]))
        result = torch.autograd.grad(loss, list(start.parameters()))
        gradient = np.concatenate([one.flatten().double().numpy() for one in result])
        total += gradient * min(1, 0.5 / np.linalg.norm(gradient))
    noise = seen.steps[0].noisy_sum - total
    assert np.abs(noise).max() < 5 * 0.5 and noise.std() > 0.5 * 0.6
    weights = np.concatenate([one.detach().flatten().numpy() for one in start.parameters()])
    moved = weights - 0.1 * seen.steps[0].noisy_sum / 60
    result = np.concatenate(
        [one.detach().flatten().numpy() for one in fitted.module_.parameters()]
    )
    np.testing.assert_allclose(result, moved, atol=1e-6)
    assert fitted.n_iter_ == 1


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    "optimizer", [SGD(0.1), Momentum(0.1), Adam(0.01), Langevin(0.1, 1.0)], ids=repr
)
def test_the_event_equals_that_of_a_linear_model_with_the_same_settings(optimizer, relation):
    settings = {
        **SETTINGS,
        "steps": 7,
        "sampling_rate": 0.2,
        "relation": relation,
        "optimizer": optimizer,
    }
    if isinstance(optimizer, Langevin):
        settings["noise_multiplier"] = None
    linear = PrivateLogisticRegression(**settings)
    deep = PrivateNetwork(network(), **settings)
    assert deep.event() == linear.event()
    assert deep.fit(X, Y).event_ == deep.event()
    assert deep.private_ and re.search("epsilon", deep.statement_.text())


@pytest.mark.parametrize("gradients", ["ghost", "functional", "hooks"])
@pytest.mark.parametrize("clip", [Flat(0.3), GlobalAdapt(0.3, 1.0)], ids=repr)
def test_neighbors_differ_by_at_most_the_bound(gradients, clip):
    """The same randomness on neighbors: the noise cancels in the first noisy sums."""
    settings = {"sampling_rate": 1.0, "clip": clip, "steps": 1, "gradients": gradients}
    whole, part, other = RecordedSteps(), RecordedSteps(), RecordedSteps()
    model(on_step=whole, **settings).fit(X, Y)
    model(on_step=part, **settings).fit(X[:-1], Y[:-1])
    changed = X.copy()
    changed[-1] = 1e4
    model(on_step=other, **settings).fit(changed, 1 - Y)
    sums = [one.steps[0].noisy_sum for one in (whole, part, other)]
    assert 0.01 < np.linalg.norm(sums[0] - sums[1]) <= 0.3
    assert np.linalg.norm(sums[0] - sums[2]) > 0.3  # the whole of the labels is another


@pytest.mark.parametrize("block", [1, 7, 60])
def test_blocks_change_nothing_but_rounding(block):
    whole, cut = RecordedSteps(), RecordedSteps()
    settings = {"sampling_rate": 0.5, "clip": 0.3, "optimizer": 0.1}
    model(block=64, on_step=whole, **settings).fit(X, Y)
    model(block=block, on_step=cut, **settings).fit(X, Y)
    for one, other in zip(whole.steps, cut.steps, strict=True):
        np.testing.assert_allclose(one.noisy_sum, other.noisy_sum, atol=5e-3)


@pytest.mark.parametrize("count", [0, 1, 59, 60])
def test_two_workers_give_the_sums_of_one(count):
    module, twin = network(), network(1)
    layout, records = Layout(module), IndexedRecords(X, Y)
    one, other = (GhostEngine(each, cross_entropy, 8) for each in (module, twin))
    sums = [
        NetworkSums(workers, records, 60.0, 8, rng=np.random.default_rng(0))
        for workers in ([one], [one, other])
    ]
    rows, result = np.arange(count), []
    before = torch.get_num_threads()
    for each in sums:
        with each.threads():
            result.append(each(layout.read(module), rows, Flat(0.3)))
    np.testing.assert_allclose(result[0].total, result[1].total, atol=1e-12)
    assert sums[0].counts == sums[1].counts and sums[0].counts.examples == count
    assert torch.get_num_threads() == before


def test_a_partial_sum_ends_the_run():
    """Repeating its examples individually would add them twice."""
    module = network()

    class Failing(GhostEngine):
        def _layer_gradients(self, block):
            result = super()._layer_gradients(block)
            first = next(iter(result))
            result[first] = Broken(result[first])
            return result

    class Broken:
        positions = 1

        def __init__(self, inner):
            self.squared_norms = inner.squared_norms

        def weighted_sum(self, factors, kept):
            raise RuntimeError("no memory")

    workers = [Failing(module, cross_entropy, 8)]
    sums = NetworkSums(workers, IndexedRecords(X, Y), 8.0, 8, rng=np.random.default_rng(0))
    with pytest.raises(PartialSumError):
        sums(Layout(module).read(module), np.arange(5), Flat(0.3))


def test_parameters_can_be_views_of_the_weight_vector():
    module = network()
    layout = Layout(module)
    vector = layout.read(module)
    first, marks = vector.copy(), layout.digests(vector)
    layout.share(vector, module)
    vector += 1.0
    np.testing.assert_array_equal(layout.read(module), vector)
    place = layout.slices[0]
    vector[place.start : place.end] = first[place.start : place.end]
    assert layout.unchanged(marks, vector) == (layout.slices[0].name,)
    gap = {one.untyped_storage().data_ptr() for one in module.parameters()}
    assert len(gap) == len(layout.slices)


def test_an_empty_batch_takes_a_noisy_step():
    seen = RecordedSteps()
    fitted = model(sampling_rate=1e-9, steps=3, on_step=seen).fit(X, Y)
    assert fitted.internal_.examples == 0 and fitted.n_iter_ == 3
    assert all(np.linalg.norm(step.noisy_sum) > 0 for step in seen.steps)
    assert not np.array_equal(seen.steps[0].noisy_sum, seen.steps[1].noisy_sum)


def test_noise_never_comes_from_torch():
    """The noise differs although torch's generator is in the same state."""
    sums = []
    for _ in range(2):
        seen = RecordedSteps()
        torch.manual_seed(3)
        model(random_state=None, steps=1, sampling_rate=1e-9, on_step=seen).fit(X, Y)
        sums.append(seen.steps[0].noisy_sum)
    assert not np.array_equal(*sums)


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("gradients", [None, "functional"])
def test_the_state_of_torchs_generator_is_restored(seed, gradients):
    dropped = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    built = model(dropped, random_state=seed, gradients=gradients)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    built.fit(X, Y)
    built.resolve_settings(Dataset(X, Y, (0, 1), size=60))
    assert torch.equal(torch.rand(3), expected)


def test_a_nonfinite_record_is_counted_and_adds_nothing():
    rows, labels = X.copy(), Y.copy()
    rows[3:5], labels[3:5] = 3e38, (0, 1)  # for one of them the network is wrong
    spoiled = Dataset(rows, labels, (0, 1), size=60)
    fitted = model(nn.Sequential(nn.Linear(4, 2)), sampling_rate=1.0).fit_records(spoiled)
    assert fitted.internal_.nonfinite == 4 and fitted.internal_.examples == 240
    assert np.isfinite(fitted.logits(X)).all()


def test_the_given_module_is_not_changed():
    given = network()
    before = copy.deepcopy(given.state_dict())
    fitted = model(given).fit(X, Y)
    assert all(torch.equal(one, before[name]) for name, one in given.state_dict().items())
    assert list(fitted.module_.state_dict()) == list(before)
    assert not fitted.module_.training
    again = clone(fitted)
    assert not hasattr(again, "module_")


def test_a_function_makes_new_weights_for_every_fit():
    built = PrivateNetwork(lambda: nn.Linear(4, 2), **SETTINGS, steps=1, optimizer=1e-5)
    first, second = (clone(built).fit(X, Y).module_.weight for _ in range(2))
    assert not torch.allclose(first, second, atol=1e-3)
    same = [clone(built).set_params(random_state=3).fit(X, Y).module_.weight for _ in range(2)]
    assert torch.equal(*same)


@pytest.mark.parametrize("outputs", [1, 2])
def test_it_learns_and_predicts_like_a_scikit_learn_classifier(outputs):
    rows = np.repeat(X, 20, axis=0)
    labels = np.where(np.repeat(Y, 20), "yes", "no")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))
    settings = {"classes": ["no", "yes"], "size": 1200, "epsilon": 8.0, "random_state": 0}
    fitted = PrivateNetwork(module, **settings, average=ExponentialAverage(0.9)).fit(
        rows, labels
    )
    assert fitted.score(rows, labels) > 0.85
    logits = fitted.logits(X)
    assert logits.shape == (60, 2)
    np.testing.assert_allclose(fitted.predict_proba(X).sum(1), 1)
    np.testing.assert_allclose(fitted.decision_function(X), logits[:, 1] - logits[:, 0])
    assert list(fitted.classes_) == ["no", "yes"]
    assert not fitted.self_check_.problems
    with pytest.raises(ValueError, match="features"):
        fitted.predict(X[:, :3])


def test_the_logits_of_a_row_do_not_depend_on_others():
    fitted = model().fit(X, Y)
    whole = fitted.logits(X)
    for some in (slice(0, 1), slice(3, 30), slice(50, 60)):
        assert np.array_equal(fitted.logits(X[some]), whole[some])


def test_images_are_prepared_by_type():
    bytes_ = RNG.integers(0, 256, (30, 6, 6), np.uint8)
    assert as_tensor(bytes_).shape == (30, 1, 6, 6) and float(as_tensor(bytes_).max()) <= 1
    colored = ImageScaler((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))(
        np.full((2, 5, 4, 3), 255, np.uint8)
    )
    assert colored.shape == (2, 3, 5, 4)
    assert float(colored[0, 2, 0, 0]) == pytest.approx((1 - 0.3) / 0.2)
    data = Dataset(bytes_, np.arange(30) % 2, ("a", "b"), size=30)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    fitted = model(module, classes=["a", "b"], size=30, delta=1e-3).fit_records(data)
    assert fitted.private_ is False  # a seed was given
    assert fitted.predict(bytes_).shape == (30,)


@pytest.mark.parametrize("keep", ["clipping only", "noise only", "neither"])
def test_an_ablation_states_that_it_is_not_private(keep):
    fitted = model(not_private=keep, random_state=None).fit(X, Y)
    assert not fitted.private_ and keep in fitted.statement_.text()
    # With a seed: what is not clipped may be as long as noise, in a batch that is not empty.
    displayed = model(not_private=keep, sampling_rate=0.02).fit(X, Y).self_check_
    assert (displayed.noise < displayed.least_noise) == (keep != "noise only")


def test_a_run_ended_by_a_hook_is_fully_charged_and_has_no_guarantee():
    settings = {"random_state": None, "sampling_rate": 1.0}
    stopped = model(on_step=lambda _, step: step.number == 1, **settings).fit(X, Y)
    watched = model(on_step=lambda *_: None, **settings).fit(X, Y)
    assert stopped.n_iter_ == 2 and watched.n_iter_ == 4
    assert stopped.event_ == watched.event_ == model(**settings).event()
    assert not stopped.private_ and "ended by a hook" in stopped.not_private_because_[0]
    assert watched.private_


def test_a_progress_bar_shows_the_completed_steps(capfd, tmp_path):
    model(steps=3, checkpoint=tmp_path / "run", verbose=True).fit(X, Y)
    out, displayed = capfd.readouterr()
    assert not out and "steps" in displayed and "3/3" in displayed
    model(steps=3).fit(X, Y)
    assert not capfd.readouterr().err


def test_a_moving_average_equals_its_formula():
    seen, decay = RecordedSteps(), 0.6
    fitted = model(average=ExponentialAverage(decay), on_step=seen, optimizer=0.5, steps=5).fit(
        X, Y
    )
    mean = weight = 0.0
    for step in seen.steps:
        mean = decay * mean + (1 - decay) * step.weights.astype(np.float64)
        weight = decay * weight + (1 - decay)
    result = Layout(fitted.module_).read(fitted.module_)
    np.testing.assert_allclose(result, mean / weight, atol=1e-6)
    plain = np.mean([step.weights for step in seen.steps], axis=0)
    assert np.abs(result - plain).max() > 1e-3


def test_views_are_averaged():
    class Turned:
        views = 2

        def __call__(self, inputs, rng):
            return torch.stack([inputs, -inputs], 1).flatten(0, 1)

    seen, plain = RecordedSteps(), RecordedSteps()
    settings = {"sampling_rate": 1.0, "steps": 1, "clip": 100.0}
    module = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(module.weight)
    for changed, rows in (
        ({"augment": Turned(), "on_step": seen}, X),
        ({"on_step": plain}, X * 0),
    ):
        with pytest.warns(UserWarning, match="almost nothing"):
            model(module, **changed, **settings).fit(rows, Y)
    # At zero weights the gradients of x and -x are opposite, and nothing is left but noise.
    np.testing.assert_allclose(seen.steps[0].noisy_sum, plain.steps[0].noisy_sum, atol=1e-4)


# ---------------------------------------------------------------- self-check


def test_missing_noise_is_detected(monkeypatch):
    monkeypatch.setattr(DPSGD, "_add_noise", lambda self, total, std, ahead: total)
    with pytest.warns(UserWarning, match="noise that was paid for"):
        fitted = model(sampling_rate=0.02).fit(X, Y)
    assert fitted.self_check_.noise < fitted.self_check_.least_noise


def test_constant_outputs_are_detected():
    module = nn.Sequential(nn.Linear(4, 3), nn.Threshold(1e9, 0.0), nn.Linear(3, 2))
    with pytest.warns(UserWarning, match="same logits"):
        assert model(module).fit(X, Y).self_check_.constant


@pytest.mark.parametrize("how", ["fails", "not finite", "clip bound far above"])
def test_records_that_add_nothing_are_detected_from_released_values(how):
    """Noise alone is taken for a signal in one of fifty runs, not with this seed."""
    module, rows, clip = Touchy(how == "not finite"), X + 100, 1.0
    if how == "clip bound far above":
        module, rows, clip = network(), X, 1e4
    settings = {"sampling_rate": 1.0, "clip": clip, "optimizer": 1e-4}
    with pytest.warns(UserWarning, match="almost nothing"):
        fitted = model(module, **settings).fit_records(Dataset(rows, Y, (0, 1), size=60))
    assert fitted.self_check_.noise_only
    assert (fitted.internal_.nonfinite == fitted.internal_.examples) == (clip == 1.0)


@pytest.mark.parametrize("steps", [1, 200])
def test_large_noise_gives_no_warning(steps):
    """By the settings alone, so few records would not be visible."""
    settings = {
        "noise_multiplier": 50.0,
        "sampling_rate": 0.05,
        "optimizer": 1e-4,
        "steps": steps,
    }
    assert not model(**settings).fit(X, Y).self_check_.problems


# ---------------------------------------------------------------- copies and files


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))],
    ids=["deepcopy", "pickle"],
)
def test_a_copy_predicts_the_same_and_has_no_internal_figures(copied):
    fitted = model(network()).fit(X, Y)
    expected = fitted.predict_proba(X)  # state of the first call is not copied
    result = copied(fitted)
    np.testing.assert_array_equal(result.predict_proba(X), expected)
    assert fitted.internal_.examples > 0
    assert not hasattr(result, "internal_")
    assert b"internal_" not in pickle.dumps(fitted)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_internal_figures_stay_in_their_process(copied):
    fitted = model(network()).fit(X, Y)
    with pytest.raises(TypeError, match="stay in the process that holds the records"):
        copied(fitted.internal_)
