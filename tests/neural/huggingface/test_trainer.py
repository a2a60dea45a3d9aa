"""A trainer that promises what it charges, and trains what it says."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from tests.neural.huggingface.tiny import (
    LENGTH,
    arguments,
    arrays,
    bert,
    distilbert,
    texts,
    trainer,
)
from veracal.accounting import Budget, Repeated, Unit, epsilon_for
from veracal.errors import BudgetError, DataError
from veracal.ledger import Item, open_ledger
from veracal.mechanisms import DPSGD, Flat, GlobalV2, Poisson
from veracal.neural.gradient_sums import Layout
from veracal.neural.gradients.blocks import cross_entropy
from veracal.neural.gradients.engines import GhostEngine
from veracal.neural.huggingface import PrivacyArguments, PrivateTrainer, add_lora, train_only
from veracal.neural.huggingface.trainer import _check_all_moved


def weights(model):
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def moved(before, model):
    return {
        name for name, one in model.named_parameters() if not torch.equal(before[name], one)
    }


class Watched(list):
    """Rows that take note of when they are read."""

    def __init__(self, rows, on_read):
        super().__init__(rows)
        self.on_read = on_read

    def __getitem__(self, row):
        self.on_read()
        return super().__getitem__(row)


# ------------------------------------------------------------------ two lines


def test_a_script_changes_by_two_lines(tmp_path):
    """The same call with another class and one argument more."""
    given = {
        "model": bert(),
        "args": arguments(tmp_path),
        "train_dataset": texts(),
        "eval_dataset": arrays(texts(20, seed=1)),
        "compute_metrics": lambda found: {
            "accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())
        },
    }
    privacy = PrivacyArguments(epsilon=3.0, delta=1e-3, size=60, max_length=LENGTH)
    model, names = given["model"], set(weights(given["model"]))
    before = weights(model)
    made = PrivateTrainer(**given, privacy=privacy)
    output = made.train()

    assert isinstance(made, Trainer) and made.model is model
    assert output.global_step == 3 and math.isnan(output.training_loss)
    assert moved(before, model) == names  # under their own names, and all of them
    assert made.private_ and made.not_private_because_ == ()
    assert "eval_accuracy" in made.evaluate()
    assert made.predict(made.eval_dataset).predictions.shape == (20, 3)


def test_the_weights_can_be_saved_and_loaded(tmp_path):
    made = trainer(tmp_path)
    made.train()
    made.save_model(str(tmp_path / "saved"))
    again = type(made.model).from_pretrained(tmp_path / "saved", local_files_only=True)
    assert not moved(weights(made.model), again)


@pytest.mark.parametrize("rows", [texts(), arrays(texts())], ids=["rows", "arrays"])
def test_rows_and_arrays_are_the_same(tmp_path, rows):
    """Draws that can be repeated lead to the same weights from both."""
    made = trainer(tmp_path, distilbert(), rows, privacy={"random_state": 3})
    made.train()
    other = trainer(tmp_path, distilbert(), privacy={"random_state": 3})
    other.train()
    for name, one in weights(made.model).items():
        torch.testing.assert_close(one, other.model.get_parameter(name).detach())


# ------------------------------------------------------------------ promises


def test_what_is_charged_is_what_the_run_says(tmp_path):
    """Charged once, before the first record is read, at the cost that was announced."""
    ledger = open_ledger(tmp_path / "ledger", Budget(8.0, 1e-3), kind="open")
    entries = []
    rows = Watched(texts(), lambda: entries.append(ledger.length()))
    made = trainer(tmp_path, rows=rows, ledger=ledger, privacy={"noise_multiplier": 4.0})
    announced = made.event()
    assert not entries and ledger.length() == 0

    made.train()

    assert set(entries) == {1}
    (entry,) = ledger.entries()
    assert entry.event == announced == made.event_ and entry.purpose == "training"
    assert isinstance(announced, Repeated) and announced.times == 3
    assert announced.event.rate == 16 / 60


def test_a_ledger_that_cannot_pay_lets_nothing_be_read(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(0.5, 1e-3), kind="open")
    rows = Watched(texts(), lambda: pytest.fail("a record was read"))
    made = trainer(tmp_path, rows=rows, ledger=ledger)
    before = weights(made.model)
    with pytest.raises(BudgetError):
        made.train()
    assert not moved(before, made.model) and not made.private_
    assert made.statement_.reasons == ("it was not trained here",)


def test_the_noise_keeps_to_epsilon(tmp_path):
    made = trainer(tmp_path, privacy={"noise_multiplier": None, "epsilon": 2.0})
    assert 1.9 < epsilon_for(made.event(), 1e-3) <= 2.0


def test_the_statement_says_what_is_promised(tmp_path):
    unit = Unit("patient", at_most=2)
    made = trainer(tmp_path, privacy={"unit": unit, "noise_multiplier": 4.0})
    made.train()
    text = made.statement_.text()
    assert "one patient with at most 2 rows" in text
    assert "the weights of the classifier, after every step" in text
    assert "every row enters on its own with probability 0.266667" in text
    assert made.statement_.epsilon == epsilon_for(made.event_, 1e-3, unit)


def of_patients(most):
    """Rows that say whose they are; every patient has as many."""
    return [{**row, "patient": f"patient {i // most}"} for i, row in enumerate(texts())]


def test_a_bound_that_nobody_checked_is_said_to_be_none_of_ours(tmp_path):
    """Rows without ids may all be of one patient: there is nothing but a word for it."""
    told = {"unit": Unit("patient", at_most=2), "noise_multiplier": 4.0}
    trusted = trainer(tmp_path, privacy=told)
    trusted.train()
    said = "any patient with more than 2 rows: the rows did not say whose they are"
    assert trusted.private_ and said in trusted.statement_.text()
    assert any(said in one for one in trusted.statement_.to_json()["not_covered"])
    counted = trainer(tmp_path, rows=of_patients(2), privacy={**told, "unit_column": "patient"})
    counted.train()
    assert counted.private_ and "did not say whose" not in counted.statement_.text()
    plain = trainer(tmp_path)
    plain.train()
    assert "did not say whose" not in plain.statement_.text()


@pytest.mark.parametrize(
    ("rows", "left_out"),
    [
        (of_patients(3), 20),
        (texts(), 60),
        ([{**row, "patient": float("nan")} for row in texts()], 60),
    ],
    ids=["too many", "none", "missing"],
)
def test_rows_beyond_those_that_a_unit_may_have_contribute_nothing(tmp_path, rows, left_out):
    """They are looked at once they are paid for, and whoever has them is not told of."""
    unit = Unit("patient", at_most=2)
    privacy = {"unit": unit, "unit_column": "patient", "noise_multiplier": 4.0}
    made, entries = trainer(tmp_path, privacy=privacy), []
    plan = [Item("training", made.event())]
    budget = Budget(8.0, 1e-3, unit=unit)
    made.ledger = open_ledger(tmp_path / "ledger", budget, kind="plan", plan=plan)
    made.train_dataset = Watched(rows, lambda: entries.append(made.ledger.length()))
    made.train()
    assert made.private_
    assert made.internal_.excluded == left_out
    assert set(entries) == {1}
    with pytest.raises(DataError, match=f"{left_out} that are not so"):
        made.check_records()


@pytest.mark.parametrize(
    ("privacy", "why"),
    [({"size": None}, "declare size"), ({"random_state": 0}, "can be repeated")],
)
def test_what_breaks_the_promise_is_said(tmp_path, privacy, why):
    made = trainer(tmp_path, privacy=privacy)
    made.train()
    assert not made.private_ and made.event_ is not None
    assert (
        why in made.statement_.text() and "NOT differentially private" in made.statement_.text()
    )


def test_under_replace_one_the_size_is_public(tmp_path):
    made = trainer(tmp_path, privacy={"size": None, "relation": "replace-one"})
    made.train()
    assert made.private_ and made.event_.relation == "replace-one"
    with pytest.raises(ValueError, match="Expected size=60"):
        trainer(tmp_path, privacy={"size": 61, "relation": "replace-one"}).event()


def test_a_callback_that_ends_the_run_ends_the_promise(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            control.should_training_stop = True

    made = trainer(tmp_path, others={"callbacks": [Stop()]})
    assert made.train().global_step == 1
    assert not made.private_ and "ended by a hook" in made.not_private_because_[0]
    assert made.event_.times == 3  # all that was announced is paid


def test_an_interrupted_run_promises_nothing_and_is_not_taken_up(tmp_path):
    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            raise KeyboardInterrupt

    made = trainer(tmp_path, others={"callbacks": [Break()]})
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert not made.private_ and made.event_ is None
    with pytest.raises(ValueError, match="has not trained yet"):
        made.train()


def test_it_trains_once(tmp_path):
    made = trainer(tmp_path)
    made.train()
    with pytest.raises(ValueError, match="their costs add up"):
        made.train()


# ------------------------------------------------------------------ steps


def test_empty_batches_step_with_noise(tmp_path):
    """No record at all: every batch is empty, and every parameter moves."""
    made = trainer(tmp_path, rows=[], eval_strategy="no")
    before = weights(made.model)
    assert made.train().global_step == 3
    assert moved(before, made.model) == set(before) and made.private_


def test_a_batch_is_cut_into_blocks_and_its_size_is_not_read(tmp_path, monkeypatch):
    made = trainer(tmp_path, max_steps=20, privacy={"random_state": 0, "gradients": "ghost"})
    plan = made._planned()
    assert plan.descent.expected_batch == 16 and plan.descent.sampler == Poisson(16 / 60)
    assert plan.descent.clip == Flat(1.0)
    engine, _ = made._choose_engine(plan)
    sizes, add = [], engine.add

    def noted(block, clip, total):
        sizes.append(len(block))
        return add(block, clip, total)

    monkeypatch.setattr(engine, "add", noted)
    monkeypatch.setattr(made, "_choose_engine", lambda _: (engine, None))
    made.train()
    assert len(sizes) > 30 and 5 < np.mean(sizes) < 11  # two blocks a batch, of 8 expected


def test_callbacks_hear_of_steps_and_epochs(tmp_path):
    heard = []

    class Listen(TrainerCallback):
        def __getattribute__(self, name):
            if name.startswith("on_"):
                heard.append(name)
            return super().__getattribute__(name)

    made = trainer(
        tmp_path,
        others={"callbacks": [Listen()], "eval_dataset": arrays(texts(9))},
        max_steps=-1,
        num_train_epochs=2,
        logging_strategy="steps",
        logging_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
    )
    output = made.train()
    assert output.global_step == 8  # 2 epochs of 60 / 16 steps, rounded up
    count = {name: heard.count(name) for name in set(heard)}
    assert count["on_step_end"] == count["on_step_begin"] == 8
    assert count["on_epoch_end"] == count["on_evaluate"] == count["on_save"] == 2
    assert count["on_train_begin"] == count["on_train_end"] == 1
    logged = [one for one in made.state.log_history if "grad_norm" in one]
    assert [one["step"] for one in logged] == [2, 4, 6, 8]
    assert not any("loss" in one for one in logged)  # on training records: nobody charged it
    assert [one.name for one in tmp_path.glob("checkpoint-*")] == ["checkpoint-8"]


class Remembers(TrainerCallback, ExportableState):
    """Makes something of evaluations, and asks for it to be kept."""

    def __init__(self):
        self.last = {}

    def on_evaluate(self, args, state, control, metrics, **_):
        self.last = metrics
        state.best_metric, state.best_global_step = metrics["eval_loss"], state.global_step

    def state(self):
        return {"args": {}, "attributes": {"last": self.last}}


def test_what_evaluations_found_is_in_no_file_beside_the_weights(tmp_path):
    made = trainer(
        tmp_path,
        others={"eval_dataset": arrays(texts(9)), "callbacks": [Remembers()]},
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=2,
        logging_strategy="steps",
        logging_steps=1,
    )
    made.train()
    made.log({"accuracy_on_records": 0.75})
    made.save_state()
    found = [one for one in made.state.log_history if "eval_loss" in one]
    assert len(found) == 3  # for whoever trains
    files = [tmp_path / "trainer_state.json", *tmp_path.glob("checkpoint-*/*.json")]
    states = [json.loads(one.read_text()) for one in files if one.name == "trainer_state.json"]
    assert len(states) == 3
    for state in states:
        assert (
            state["log_history"] and state["best_metric"] is state["best_global_step"] is None
        )
        assert {len(one) for one in state["log_history"]} == {4}
        assert not state["stateful_callbacks"]
    for file in files:
        told = file.read_text()
        assert "eval_loss" not in told and "accuracy_on_records" not in told
        assert not any(str(one["eval_loss"]) in told for one in found)


def test_a_mode_that_a_callback_sets_does_not_stay(tmp_path):
    modes = []

    class Meddle(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **others):
            model.eval()

    made = trainer(tmp_path, others={"callbacks": [Meddle()]}, privacy={"gradients": "ghost"})
    made.model.register_forward_hook(lambda module, *_: modes.append(module.training))
    made.train()
    assert all(modes[-4:-1]) and not modes[-1]  # the last one looks at the result


def test_the_loss_can_be_smoothed(tmp_path):
    losses = trainer(tmp_path, label_smoothing_factor=0.1)._losses()
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    plain = cross_entropy(logits, labels)
    spread = -torch.log_softmax(logits, 1).mean(1)
    torch.testing.assert_close(losses(logits, labels), 0.9 * plain + 0.1 * spread)


# ------------------------------------------------------------------ parts


def test_adapters_alone_move(tmp_path):
    model = add_lora(bert(), rank=2)
    before = weights(model)
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert all("lora_" in name or "classifier" in name for name in trained)
    made = trainer(tmp_path, model)
    made.train()
    assert made.private_ and moved(before, model) == trained


def test_the_last_layers_alone_move(tmp_path):
    model = bert()
    before = weights(model)
    names = train_only(model, "classifier.*", "bert.pooler.*")
    assert len(names) == 4
    trainer(tmp_path, model).train()
    assert moved(before, model) == set(names)
    with pytest.raises(ValueError, match="'head.*', which matches none"):
        train_only(model, "head.*")


def test_a_run_that_trains_nothing_is_noticed():
    model = bert()
    layout = Layout(model)
    first = layout.read(model)
    last = first + 1.0
    place = next(one for one in layout.slices if one.name == "classifier.bias")
    last[place.start : place.end] -= 1.0
    with pytest.raises(RuntimeError, match="to change, but classifier.bias did not"):
        _check_all_moved(layout, layout.digests(first), last)


def test_what_a_run_shows_of_itself_is_looked_at(tmp_path, monkeypatch):
    made = trainer(tmp_path)
    made.train()
    assert made.internal_.examples > 0 == made.internal_.nonfinite
    assert (
        not made.self_check_.problems and made.self_check_.noise > made.self_check_.least_noise
    )
    silenced = trainer(tmp_path)
    monkeypatch.setattr(DPSGD, "_perturbed", lambda self, total, std, ahead: total)
    with pytest.warns(UserWarning, match="noise that was paid for"):
        silenced.train()


def test_stopping_by_scores_is_refused(tmp_path):
    with pytest.raises(ValueError, match="EarlyStoppingCallback"):
        trainer(tmp_path, others={"callbacks": [EarlyStoppingCallback()]})


def test_all_that_is_frozen_is_refused(tmp_path):
    model = bert().requires_grad_(False)
    with pytest.raises(ValueError, match="all are frozen"):
        trainer(tmp_path, model)


# ------------------------------------------------------------------ records


ODD = {
    "label": {"labels": 3},
    "negative label": {"labels": -100},
    "text for a label": {"labels": "HIV positive"},
    "label of several numbers": {"labels": [1, 2]},
    "token": {"input_ids": [99]},
    "text for tokens": {"input_ids": "words"},
    "no tokens": {"input_ids": None},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_a_record_that_does_not_fit_is_as_if_it_were_not_there(tmp_path, odd):
    """The charge, the outcome and the weights are the same with it and without it."""
    found = {}
    for name in ("with", "without"):
        rows = texts(59) + [{"input_ids": [5], "labels": 0, **odd}] * (name == "with")
        ledger = open_ledger(tmp_path / name, Budget(80.0, 1e-3), kind="open")
        told = {"random_state": 0, "noise_multiplier": 4.0}
        made = trainer(tmp_path, rows=rows, privacy=told, ledger=ledger)
        made.train()
        assert made.internal_.excluded == (name == "with")
        found[name] = weights(made.model), [one.event for one in ledger.entries()]
    assert not moved(found["with"][0], made.model)
    assert found["with"][1] == found["without"][1]


def test_the_holder_can_look_for_records_that_would_be_left_out(tmp_path):
    trainer(tmp_path).check_records()
    odd = trainer(tmp_path, rows=[*texts(59), {"input_ids": [5], "labels": 7}])
    with pytest.raises(DataError, match="1 invalid ones.*Do not publish this number"):
        odd.check_records()
    given = arrays(texts())
    given["labels"][:3] = 9
    with pytest.raises(DataError, match="3 invalid ones"):
        trainer(tmp_path, rows=given).check_records()


def test_a_table_without_the_columns_that_are_read_is_refused_by_its_names(tmp_path):
    class Table(list):
        column_names = ("input_ids", "stars")

    with pytest.raises(ValueError, match="a column 'labels' or .*, got 'input_ids', 'stars'"):
        trainer(tmp_path, rows=Table(texts())).train()


def test_long_texts_are_cut(tmp_path):
    made = trainer(tmp_path, rows=[{"input_ids": [5] * 11, "label": 1}] * 60)
    made.train()
    assert made.private_


@pytest.mark.parametrize(("clip", "sizes"), [(GlobalV2(0.7), {1}), (Flat(0.7), {8})])
def test_blocks_have_one_shape_and_rules_that_jump_one_example(
    tmp_path, monkeypatch, clip, sizes
):
    seen, add = set(), GhostEngine.add

    def noted(engine, block, clip, total):
        if clip.bound == 0.7:  # and not in the trial before
            seen.add(len(block))
        return add(engine, block, clip, total)

    monkeypatch.setattr(GhostEngine, "add", noted)
    made = trainer(tmp_path, privacy={"clip": clip})
    made.train()
    assert seen == sizes  # 16 + 4 sqrt(16) slots in four blocks
    assert made.private_
