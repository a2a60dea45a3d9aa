"""The private trainer charges its cost and keeps its guarantee."""

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
from veracal.neural import PrivacyArguments, PrivateTrainer, add_lora, train_only
from veracal.neural.examples import cross_entropy
from veracal.neural.gradient_sums import Layout
from veracal.neural.gradients.engines import GhostEngine
from veracal.neural.huggingface.trainer import _check_all_moved


def weights(model):
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def moved(before, model):
    return {
        name for name, one in model.named_parameters() if not torch.equal(before[name], one)
    }


class RecordingRows(list):
    """Rows that report when they are read."""

    def __init__(self, rows, on_read):
        super().__init__(rows)
        self.on_read = on_read

    def __getitem__(self, row):
        self.on_read()
        return super().__getitem__(row)


# ------------------------------------------------------------------ two lines


def test_a_script_changes_by_two_lines(tmp_path):
    """The same call with another class and one more argument."""
    given = {
        "model": bert(),
        "args": arguments(tmp_path),
        "train_dataset": texts(),
        "eval_dataset": arrays(texts(20, seed=1)),
        "compute_metrics": lambda result: {
            "accuracy": float((result.predictions.argmax(1) == result.label_ids).mean())
        },
    }
    privacy = PrivacyArguments(epsilon=3.0, delta=1e-3, size=60, max_length=LENGTH)
    model, names = given["model"], set(weights(given["model"]))
    before = weights(model)
    private_trainer = PrivateTrainer(**given, privacy=privacy)
    output = private_trainer.train()

    assert isinstance(private_trainer, Trainer) and private_trainer.model is model
    assert output.global_step == 3 and math.isnan(output.training_loss)
    assert moved(before, model) == names  # under their own names, and all of them
    assert private_trainer.private_ and private_trainer.not_private_because_ == ()
    assert "eval_accuracy" in private_trainer.evaluate()
    assert private_trainer.predict(private_trainer.eval_dataset).predictions.shape == (20, 3)


def test_the_weights_can_be_saved_and_loaded(tmp_path):
    private_trainer = trainer(tmp_path)
    private_trainer.train()
    private_trainer.save_model(str(tmp_path / "saved"))
    again = type(private_trainer.model).from_pretrained(
        tmp_path / "saved", local_files_only=True
    )
    assert not moved(weights(private_trainer.model), again)


@pytest.mark.parametrize("rows", [texts(), arrays(texts())], ids=["rows", "arrays"])
def test_rows_and_arrays_give_the_same_result(tmp_path, rows):
    """Seeded runs give the same weights for both."""
    private_trainer = trainer(tmp_path, distilbert(), rows, privacy={"random_state": 3})
    private_trainer.train()
    other = trainer(tmp_path, distilbert(), privacy={"random_state": 3})
    other.train()
    for name, one in weights(private_trainer.model).items():
        torch.testing.assert_close(one, other.model.get_parameter(name).detach())


# ------------------------------------------------------------------ promises


def test_the_charge_equals_the_event_of_the_run(tmp_path):
    """Charged once, before the first record is read, at the announced cost."""
    ledger = open_ledger(tmp_path / "ledger", Budget(8.0, 1e-3), kind="open")
    entries = []
    rows = RecordingRows(texts(), lambda: entries.append(ledger.length()))
    private_trainer = trainer(
        tmp_path, rows=rows, ledger=ledger, privacy={"noise_multiplier": 4.0}
    )
    announced = private_trainer.event()
    assert not entries and ledger.length() == 0

    private_trainer.train()

    assert set(entries) == {1}
    (entry,) = ledger.entries()
    assert entry.event == announced == private_trainer.event_ and entry.purpose == "training"
    assert isinstance(announced, Repeated) and announced.times == 3
    assert announced.event.rate == 16 / 60


def test_no_record_is_read_if_the_ledger_cannot_pay(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(0.5, 1e-3), kind="open")
    rows = RecordingRows(texts(), lambda: pytest.fail("a record was read"))
    private_trainer = trainer(tmp_path, rows=rows, ledger=ledger)
    before = weights(private_trainer.model)
    with pytest.raises(BudgetError):
        private_trainer.train()
    assert not moved(before, private_trainer.model) and not private_trainer.private_
    assert private_trainer.statement_.reasons == ("this trainer has not trained it",)


def test_the_noise_respects_epsilon(tmp_path):
    private_trainer = trainer(tmp_path, privacy={"noise_multiplier": None, "epsilon": 2.0})
    assert 1.9 < epsilon_for(private_trainer.event(), 1e-3) <= 2.0


def test_the_statement_states_the_guarantee(tmp_path):
    unit = Unit("patient", max_contributions=2)
    private_trainer = trainer(tmp_path, privacy={"unit": unit, "noise_multiplier": 4.0})
    private_trainer.train()
    text = private_trainer.statement_.text()
    assert "one patient with at most 2 rows" in text
    assert "the weights of the classifier, after every step" in text
    assert "every row enters independently with probability 0.266667" in text
    assert private_trainer.statement_.epsilon == epsilon_for(private_trainer.event_, 1e-3, unit)


def of_patients(most):
    """Rows with ids; every patient has ``most`` rows."""
    return [{**row, "patient": f"patient {i // most}"} for i, row in enumerate(texts())]


def test_the_statement_excludes_an_unchecked_unit_bound(tmp_path):
    """Rows without ids may all belong to one patient: the bound is only declared."""
    settings = {"unit": Unit("patient", max_contributions=2), "noise_multiplier": 4.0}
    trusted = trainer(tmp_path, privacy=settings)
    trusted.train()
    said = "any patient with more than 2 rows: the rows had no ids"
    assert trusted.private_ and said in trusted.statement_.text()
    assert any(said in one for one in trusted.statement_.to_json()["not_covered"])
    counted = trainer(
        tmp_path, rows=of_patients(2), privacy={**settings, "unit_column": "patient"}
    )
    counted.train()
    assert counted.private_ and "the rows had no ids" not in counted.statement_.text()
    plain = trainer(tmp_path)
    plain.train()
    assert "the rows had no ids" not in plain.statement_.text()


@pytest.mark.parametrize(
    ("rows", "left_out"),
    [
        (of_patients(3), 20),
        (texts(), 60),
        ([{**row, "patient": float("nan")} for row in texts()], 60),
    ],
    ids=["too many", "none", "missing"],
)
def test_rows_beyond_the_unit_limit_contribute_nothing(tmp_path, rows, left_out):
    """They are read after the charge, and no error reveals them."""
    unit = Unit("patient", max_contributions=2)
    privacy = {"unit": unit, "unit_column": "patient", "noise_multiplier": 4.0}
    private_trainer, entries = trainer(tmp_path, privacy=privacy), []
    plan = [Item("training", private_trainer.event())]
    budget = Budget(8.0, 1e-3, unit=unit)
    private_trainer.ledger = open_ledger(tmp_path / "ledger", budget, kind="plan", plan=plan)
    private_trainer.train_dataset = RecordingRows(
        rows, lambda: entries.append(private_trainer.ledger.length())
    )
    private_trainer.train()
    assert private_trainer.private_
    assert private_trainer.internal_.excluded == left_out
    assert set(entries) == {1}
    with pytest.raises(DataError, match=f"{left_out} invalid ones"):
        private_trainer.check_records()


@pytest.mark.parametrize(
    ("privacy", "why"),
    [({"size": None}, "declare size"), ({"random_state": 0}, "can be reproduced")],
)
def test_reasons_for_no_guarantee_are_stated(tmp_path, privacy, why):
    private_trainer = trainer(tmp_path, privacy=privacy)
    private_trainer.train()
    assert not private_trainer.private_ and private_trainer.event_ is not None
    assert (
        why in private_trainer.statement_.text()
        and "NOT differentially private" in private_trainer.statement_.text()
    )


def test_under_replace_one_the_size_is_public(tmp_path):
    private_trainer = trainer(tmp_path, privacy={"size": None, "relation": "replace-one"})
    private_trainer.train()
    assert private_trainer.private_ and private_trainer.event_.relation == "replace-one"
    with pytest.raises(ValueError, match="Expected size=60"):
        trainer(tmp_path, privacy={"size": 61, "relation": "replace-one"}).event()


def test_a_run_ended_by_a_callback_has_no_guarantee(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            control.should_training_stop = True

    private_trainer = trainer(tmp_path, others={"callbacks": [Stop()]})
    assert private_trainer.train().global_step == 1
    assert (
        not private_trainer.private_
        and "ended by a hook" in private_trainer.not_private_because_[0]
    )
    assert private_trainer.event_.times == 3  # all that was announced is paid


def test_an_interrupted_run_has_no_guarantee_and_does_not_resume(tmp_path):
    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            raise KeyboardInterrupt

    private_trainer = trainer(tmp_path, others={"callbacks": [Break()]})
    with pytest.raises(KeyboardInterrupt):
        private_trainer.train()
    assert not private_trainer.private_ and private_trainer.event_ is None
    with pytest.raises(ValueError, match="has not trained yet"):
        private_trainer.train()


def test_it_trains_once(tmp_path):
    private_trainer = trainer(tmp_path)
    private_trainer.train()
    with pytest.raises(ValueError, match="their costs add up"):
        private_trainer.train()


# ------------------------------------------------------------------ steps


def test_empty_batches_take_noisy_steps(tmp_path):
    """Without records every batch is empty, and every parameter changes."""
    private_trainer = trainer(tmp_path, rows=[], eval_strategy="no")
    before = weights(private_trainer.model)
    assert private_trainer.train().global_step == 3
    assert moved(before, private_trainer.model) == set(before) and private_trainer.private_


def test_a_batch_is_split_into_blocks_independently_of_its_size(tmp_path, monkeypatch):
    private_trainer = trainer(
        tmp_path, max_steps=20, privacy={"random_state": 0, "gradients": "ghost"}
    )
    plan = private_trainer._plan()
    assert plan.dp_sgd.expected_batch == 16 and plan.dp_sgd.sampler == Poisson(16 / 60)
    assert plan.dp_sgd.clip == Flat(1.0)
    engine, _ = private_trainer._choose_engine(plan)
    sizes, add = [], engine.add

    def noted(block, clip, total):
        sizes.append(len(block))
        return add(block, clip, total)

    monkeypatch.setattr(engine, "add", noted)
    monkeypatch.setattr(private_trainer, "_choose_engine", lambda _: (engine, None))
    private_trainer.train()
    assert len(sizes) > 30 and 5 < np.mean(sizes) < 11  # two blocks a batch, of 8 expected


def test_callbacks_are_called_for_steps_and_epochs(tmp_path):
    heard = []

    class Listen(TrainerCallback):
        def __getattribute__(self, name):
            if name.startswith("on_"):
                heard.append(name)
            return super().__getattribute__(name)

    private_trainer = trainer(
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
    output = private_trainer.train()
    assert output.global_step == 8  # 2 epochs of 60 / 16 steps, rounded up
    count = {name: heard.count(name) for name in set(heard)}
    assert count["on_step_end"] == count["on_step_begin"] == 8
    assert count["on_epoch_end"] == count["on_evaluate"] == count["on_save"] == 2
    assert count["on_train_begin"] == count["on_train_end"] == 1
    logged = [one for one in private_trainer.state.log_history if "grad_norm" in one]
    assert [one["step"] for one in logged] == [2, 4, 6, 8]
    assert not any("loss" in one for one in logged)  # the training loss is not charged
    assert [one.name for one in tmp_path.glob("checkpoint-*")] == ["checkpoint-8"]


class Remembers(TrainerCallback, ExportableState):
    """Stores evaluation results in the trainer's state."""

    def __init__(self):
        self.last = {}

    def on_evaluate(self, args, state, control, metrics, **_):
        self.last = metrics
        state.best_metric, state.best_global_step = metrics["eval_loss"], state.global_step

    def state(self):
        return {"args": {}, "attributes": {"last": self.last}}


def test_evaluation_results_are_in_no_file_beside_the_weights(tmp_path):
    private_trainer = trainer(
        tmp_path,
        others={"eval_dataset": arrays(texts(9)), "callbacks": [Remembers()]},
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=2,
        logging_strategy="steps",
        logging_steps=1,
    )
    private_trainer.train()
    private_trainer.log({"accuracy_on_records": 0.75})
    private_trainer.save_state()
    result = [one for one in private_trainer.state.log_history if "eval_loss" in one]
    assert len(result) == 3  # internal
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
        settings = file.read_text()
        assert "eval_loss" not in settings and "accuracy_on_records" not in settings
        assert not any(str(one["eval_loss"]) in settings for one in result)


def test_a_mode_set_by_a_callback_is_reset(tmp_path):
    modes = []

    class Meddle(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **others):
            model.eval()

    private_trainer = trainer(
        tmp_path, others={"callbacks": [Meddle()]}, privacy={"gradients": "ghost"}
    )
    private_trainer.model.register_forward_hook(
        lambda module, *_: modes.append(module.training)
    )
    private_trainer.train()
    assert all(modes[-4:-1]) and not modes[-1]  # the last one checks the result


def test_the_loss_can_be_smoothed(tmp_path):
    losses = trainer(tmp_path, label_smoothing_factor=0.1)._losses()
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    plain = cross_entropy(logits, labels)
    spread = -torch.log_softmax(logits, 1).mean(1)
    torch.testing.assert_close(losses(logits, labels), 0.9 * plain + 0.1 * spread)


# ------------------------------------------------------------------ parts


def test_only_adapters_change(tmp_path):
    model = add_lora(bert(), rank=2)
    before = weights(model)
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert all("lora_" in name or "classifier" in name for name in trained)
    private_trainer = trainer(tmp_path, model)
    private_trainer.train()
    assert private_trainer.private_ and moved(before, model) == trained


def test_only_the_last_layers_change(tmp_path):
    model = bert()
    before = weights(model)
    names = train_only(model, "classifier.*", "bert.pooler.*")
    assert len(names) == 4
    trainer(tmp_path, model).train()
    assert moved(before, model) == set(names)
    with pytest.raises(ValueError, match="'head.*', which matches none"):
        train_only(model, "head.*")


def test_a_run_that_trains_nothing_is_detected():
    model = bert()
    layout = Layout(model)
    first = layout.read(model)
    last = first + 1.0
    place = next(one for one in layout.slices if one.name == "classifier.bias")
    last[place.start : place.end] -= 1.0
    with pytest.raises(RuntimeError, match="to change, but classifier.bias did not"):
        _check_all_moved(layout, layout.digests(first), last)


def test_the_self_check_of_a_run_is_evaluated(tmp_path, monkeypatch):
    private_trainer = trainer(tmp_path)
    private_trainer.train()
    assert private_trainer.internal_.examples > 0 == private_trainer.internal_.nonfinite
    assert (
        not private_trainer.self_check_.problems
        and private_trainer.self_check_.noise > private_trainer.self_check_.least_noise
    )
    silenced = trainer(tmp_path)
    monkeypatch.setattr(DPSGD, "_add_noise", lambda self, total, std, ahead: total)
    with pytest.warns(UserWarning, match="noise that was paid for"):
        silenced.train()


def test_early_stopping_by_scores_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="EarlyStoppingCallback"):
        trainer(tmp_path, others={"callbacks": [EarlyStoppingCallback()]})


def test_a_fully_frozen_model_is_rejected(tmp_path):
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
def test_an_invalid_record_is_treated_as_absent(tmp_path, odd):
    """Charge, outcome and weights are the same with it and without it."""
    result = {}
    for name in ("with", "without"):
        rows = texts(59) + [{"input_ids": [5], "labels": 0, **odd}] * (name == "with")
        ledger = open_ledger(tmp_path / name, Budget(80.0, 1e-3), kind="open")
        settings = {"random_state": 0, "noise_multiplier": 4.0}
        private_trainer = trainer(tmp_path, rows=rows, privacy=settings, ledger=ledger)
        private_trainer.train()
        assert private_trainer.internal_.excluded == (name == "with")
        result[name] = weights(private_trainer.model), [one.event for one in ledger.entries()]
    assert not moved(result["with"][0], private_trainer.model)
    assert result["with"][1] == result["without"][1]


def test_the_data_holder_can_find_excluded_records(tmp_path):
    trainer(tmp_path).check_records()
    odd = trainer(tmp_path, rows=[*texts(59), {"input_ids": [5], "labels": 7}])
    with pytest.raises(DataError, match="1 invalid ones.*Do not publish this number"):
        odd.check_records()
    given = arrays(texts())
    given["labels"][:3] = 9
    with pytest.raises(DataError, match="3 invalid ones"):
        trainer(tmp_path, rows=given).check_records()


def test_a_table_without_required_columns_is_rejected_by_name(tmp_path):
    class Table(list):
        column_names = ("input_ids", "stars")

    with pytest.raises(ValueError, match="a column 'labels' or .*, got 'input_ids', 'stars'"):
        trainer(tmp_path, rows=Table(texts())).train()


def test_long_texts_are_truncated(tmp_path):
    private_trainer = trainer(tmp_path, rows=[{"input_ids": [5] * 11, "label": 1}] * 60)
    private_trainer.train()
    assert private_trainer.private_


@pytest.mark.parametrize(("clip", "sizes"), [(GlobalV2(0.7), {1}), (Flat(0.7), {8})])
def test_blocks_have_one_shape_and_discontinuous_rules_one_example(
    tmp_path, monkeypatch, clip, sizes
):
    seen, add = set(), GhostEngine.add

    def noted(engine, block, clip, total):
        if clip.bound == 0.7:  # and not in the trial before
            seen.add(len(block))
        return add(engine, block, clip, total)

    monkeypatch.setattr(GhostEngine, "add", noted)
    private_trainer = trainer(tmp_path, privacy={"clip": clip})
    private_trainer.train()
    assert seen == sizes  # 16 + 4 sqrt(16) slots in four blocks
    assert private_trainer.private_
