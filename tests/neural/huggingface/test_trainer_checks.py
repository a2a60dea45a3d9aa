"""Arguments that a private training cannot honor are rejected before it starts."""

import numpy as np
import pytest
import torch
from transformers import DataCollatorForTokenClassification, default_data_collator

from tests.neural.huggingface.tiny import (
    LENGTH,
    arguments,
    arrays,
    bert,
    gpt2,
    texts,
    trainer,
)
from veracal.accounting import Budget, Unit
from veracal.ledger import open_ledger
from veracal.mechanisms import Automatic, Flat
from veracal.neural import PrivacyArguments, PrivateTrainer
from veracal.neural.huggingface.arguments import check_arguments
from veracal.neural.huggingface.data import as_dataset, load_records, text_format

REFUSED = [
    ("no bf16", {"bf16": True, "use_cpu": True}),
    ("train_sampling_strategy='random'", {"train_sampling_strategy": "group_by_length"}),
    ("no data_seed", {"data_seed": 1}),
    ("no full_determinism", {"full_determinism": True}),
    ("no dataloader_drop_last", {"dataloader_drop_last": True}),
    ("no gradient_checkpointing", {"gradient_checkpointing": True}),
    ("no neftune_noise_alpha", {"neftune_noise_alpha": 5.0}),
    ("no auto_find_batch_size", {"auto_find_batch_size": True}),
    ("no optim_args", {"optim_args": "momentum=0.9"}),
    ("optim='adamw_torch' or", {"optim": "adafactor"}),
    ("lr_scheduler_type='constant' or", {"lr_scheduler_type": "polynomial"}),
    ("include_num_input_tokens_seen='no'", {"include_num_input_tokens_seen": "all"}),
    ("learning_rate > 0", {"learning_rate": 0.0}),
    ("learning_rate > 0", {"learning_rate": float("inf")}),
    ("max_grad_norm > 0", {"max_grad_norm": 0.0}),
]


@pytest.mark.parametrize(("said", "settings"), REFUSED, ids=lambda one: str(one)[:30])
def test_unsupported_arguments_are_rejected(tmp_path, said, settings):
    args = arguments(tmp_path, **settings)
    with pytest.raises(ValueError, match=f"Expected (a finite )?{said}"):
        check_arguments(args, PrivacyArguments(epsilon=1.0))


def test_choosing_the_best_of_several_models_is_rejected(tmp_path):
    others = {"eval_dataset": arrays(texts(9))}
    with pytest.raises(ValueError, match="no load_best_model_at_end.*not charged"):
        trainer(
            tmp_path,
            others=others,
            load_best_model_at_end=True,
            eval_strategy="epoch",
            save_strategy="epoch",
            metric_for_best_model="loss",
        )


def test_only_one_clip_bound_may_be_given(tmp_path):
    private_trainer = trainer(tmp_path, max_grad_norm=0.3)
    assert private_trainer._plan().dp_sgd.clip == Flat(0.3)
    private_trainer = trainer(tmp_path, privacy={"clip": Automatic(0.5)})
    assert private_trainer._plan().dp_sgd.clip == Automatic(0.5)
    with pytest.raises(ValueError, match="one bound on gradients"):
        trainer(tmp_path, max_grad_norm=0.3, privacy={"clip": 0.5})
    with pytest.raises(ValueError, match="which both set the expected batch"):
        trainer(tmp_path, privacy={"sampling_rate": 0.1})


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("no compute_loss_func", {"compute_loss_func": lambda *_: 0}),
        ("no optimizers", {"optimizers": (torch.optim.SGD([torch.ones(1)]), None)}),
        ("no data_collator", {"data_collator": DataCollatorForTokenClassification(None)}),
    ],
)
def test_parts_of_another_training_loop_are_rejected(tmp_path, said, given):
    with pytest.raises(ValueError, match=f"Expected {said}"):
        trainer(tmp_path, others=given)


def test_overrides_that_would_never_be_called_are_rejected(tmp_path):
    class Own(PrivateTrainer):
        def compute_loss(self, *given, **others):
            return 0

    with pytest.raises(ValueError, match="overrides compute_loss"):
        Own(
            bert(),
            arguments(tmp_path),
            data_collator=default_data_collator,
            train_dataset=texts(),
            privacy=PrivacyArguments(epsilon=1.0, size=60, max_length=LENGTH),
        )


def test_resumed_runs_and_searches_are_rejected(tmp_path):
    private_trainer = trainer(tmp_path)
    with pytest.raises(ValueError, match="cannot be resumed"):
        private_trainer.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="no hyperparameter search"):
        private_trainer.train(trial={"learning_rate": 1.0})


@pytest.mark.parametrize(
    ("said", "privacy"),
    [
        ("declared max_length", {"max_length": None}),
        ("at most 12, the positions", {"max_length": 13}),
        ("delta below 1 / size", {"delta": 0.1}),
        ("batch of at most 10", {"size": 10}),
    ],
)
def test_inconsistent_facts_are_rejected_before_a_record_is_read(tmp_path, said, privacy):
    private_trainer = trainer(tmp_path, privacy=privacy)
    with pytest.raises(ValueError, match=said):
        private_trainer.train()
    assert private_trainer.not_private_because_ == ("this trainer has not trained it",)


def test_arrays_may_be_as_long_as_the_longest_text_so_their_length_is_declared(tmp_path):
    given = arrays(texts())
    with pytest.raises(ValueError, match="declared max_length"):
        trainer(tmp_path, rows=given, privacy={"max_length": None}).train()
    del given["attention_mask"]
    with pytest.raises(ValueError, match="attention_mask"):
        trainer(tmp_path, rows=given).train()


def test_arrays_have_no_unit_column(tmp_path):
    privacy = {"unit": Unit("patient", max_contributions=2), "unit_column": "patient"}
    with pytest.raises(ValueError, match="unit column 'patient', got arrays"):
        trainer(tmp_path, rows=arrays(texts()), privacy=privacy).train()


@pytest.mark.parametrize("longer", [-2, 0, 3])
def test_arrays_are_fitted_to_the_declared_length(longer):
    given = {name: one.astype(np.uint8) for name, one in arrays(texts()).items()}
    form = text_format(as_dataset(given), bert(), LENGTH + longer, 0)
    read = load_records(as_dataset(given), form)
    result = read.X["input_ids"]
    assert result.shape == (len(read), LENGTH + longer) and result.dtype == np.int64
    width = min(LENGTH, LENGTH + longer)
    assert (result[:, :width] == given["input_ids"][:, :width]).all()
    assert not read.X["attention_mask"][:, LENGTH:].any()


def test_records_without_indices_are_rejected(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(texts())

    with pytest.raises(ValueError, match="a length and indices"):
        trainer(tmp_path, rows=Stream()).event()


def test_a_model_without_a_padding_token_is_rejected(tmp_path):
    """Decoders need it to find the last token, and for batches of several texts."""
    model = gpt2()
    model.config.pad_token_id = None
    with pytest.raises(ValueError, match=r"pad_token_id=None. Set model\.config\.pad_token_id"):
        trainer(tmp_path, model).train()


def test_regression_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="two classes or more"):
        trainer(tmp_path, bert(num_labels=1))


def test_meta_and_inference_models_are_rejected(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(8.0, 1e-3), kind="open")
    with torch.device("meta"):
        empty = bert()
    with pytest.raises(ValueError, match="'meta'.*to_empty"):
        trainer(tmp_path, empty, ledger=ledger)
    with torch.inference_mode():
        inferred = bert()
    for model, inside in ((inferred, torch.no_grad), (bert(), torch.inference_mode)):
        private_trainer = trainer(
            tmp_path, model, ledger=ledger, privacy={"noise_multiplier": 3.0}
        )
        with inside(), pytest.raises(ValueError, match=r"torch\.inference_mode\(\)"):
            private_trainer.train()
    assert not list(ledger.entries())


class Late(torch.nn.Linear):
    """Mixes the texts of a large block, but not a few texts."""

    def forward(self, hidden):
        return super().forward(hidden - hidden.mean(0) if len(hidden) > 5 else hidden)


def test_a_model_that_mixes_the_texts_of_a_block_is_rejected(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(8.0, 1e-3), kind="open")
    model = bert()
    model.classifier = Late(32, 3)
    private_trainer = trainer(tmp_path, model, ledger=ledger, privacy={"noise_multiplier": 3.0})
    with pytest.raises(ValueError, match="treats each example independently"):
        private_trainer.train()
    assert not list(ledger.entries())


def test_the_ledger_must_be_a_ledger(tmp_path):
    with pytest.raises(ValueError, match=r"a Ledger of .*got 'clinic\.ledger'"):
        trainer(tmp_path, ledger="clinic.ledger")


def test_the_unit_must_be_that_of_the_ledger(tmp_path):
    unit = Unit("patient", max_contributions=2)
    ledger = open_ledger(tmp_path / "ledger", Budget(5.0, 1e-3, unit=unit), kind="open")
    with pytest.raises(ValueError, match="which the ledger protects"):
        trainer(tmp_path, ledger=ledger)


@pytest.mark.parametrize("rate", [None, 0.1])
def test_a_ledger_requires_a_declared_size(tmp_path, rate):
    """The charged rate would reveal the number of records."""
    ledger = open_ledger(tmp_path / "ledger", Budget(8.0, 1e-3), kind="open")
    undeclared = {"size": None, "noise_multiplier": 4.0, "sampling_rate": rate}
    settings = {"gradient_accumulation_steps": 1}
    with pytest.raises(ValueError, match=r"declared size .* got size=None.*size=\.\.\."):
        trainer(tmp_path, ledger=ledger, privacy=undeclared, **settings)
    private_trainer = trainer(tmp_path, privacy=undeclared, **settings)
    private_trainer.ledger = ledger  # too late for the first look, and not for the second
    for ask in (private_trainer.event, private_trainer.train):
        with pytest.raises(ValueError, match="Nothing was charged"):
            ask()
    assert not list(ledger.entries())


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("either epsilon or noise_multiplier", {}),
        ("either epsilon or noise_multiplier", {"epsilon": 1.0, "noise_multiplier": 1.0}),
        ("finite epsilon > 0", {"epsilon": -1.0}),
        ("finite delta > 0", {"epsilon": 1.0, "delta": 0.0}),
        ("finite clip > 0", {"epsilon": 1.0, "clip": 0}),
        ("finite clip > 0 or a clip rule", {"epsilon": 1.0, "clip": "flat"}),
        ("noise_multiplier > 0 or a Schedule", {"noise_multiplier": "much"}),
        ("integer size >= 1", {"epsilon": 1.0, "size": 0.5}),
        ("sampling_rate between", {"epsilon": 1.0, "sampling_rate": 2.0}),
        ("relation to be one of", {"epsilon": 1.0, "relation": "both"}),
        ("gradients to be one of", {"epsilon": 1.0, "gradients": "magic"}),
        ("unit to be a Unit", {"epsilon": 1.0, "unit": "patient"}),
        ("the unit that the ids", {"epsilon": 1.0, "unit_column": "patient"}),
        (
            "unit_column to be a name",
            {"epsilon": 1.0, "unit": Unit("patient"), "unit_column": 3},
        ),
        ("random_state to be", {"epsilon": 1.0, "random_state": "x"}),
    ],
)
def test_contradictory_settings_are_rejected(said, given):
    with pytest.raises(ValueError, match=f"Expected .*{said}|Expected {said}|{said}"):
        PrivacyArguments(**given)


def test_privacy_must_be_privacy_arguments(tmp_path):
    with pytest.raises(ValueError, match="Expected privacy to be PrivacyArguments"):
        PrivateTrainer(bert(), arguments(tmp_path), privacy={"epsilon": 1.0})
