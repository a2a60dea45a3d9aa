"""`veracal plan` computes the cost of a run without records."""

import json

import pytest

from veracal.accounting.epsilon import epsilon_for
from veracal.accounting.events import PoissonGaussian, Repeated

TRAIN = ["plan", "train", "--records", "10000", "--batch", "100"]


def test_plan_train_finds_the_noise_for_a_budget(run):
    code, out, _ = run(*TRAIN, "--epochs", "2", "--epsilon", "2", "--delta", "1e-5", "--json")
    plan = json.loads(out)
    assert code == 0 and plan["steps"] == 200 and plan["rate"] == 0.01
    event = Repeated(PoissonGaussian(plan["noise_multiplier"], rate=0.01), 200)
    assert plan["epsilon"] == epsilon_for(event, 1e-5) <= 2
    assert plan["statement"]["unit"] == "record"


def test_the_table_names_the_protected_unit(run):
    unit = ["--unit", "patient", "--max-contributions", "2"]
    code, out, _ = run(*TRAIN, "--steps", "200", "--noise", "1.5", *unit)
    assert code == 0
    for words in ("noise multiplier", "1.5", "one patient", "at most 2 rows", "add-remove"):
        assert words in out
    assert "epsilon if batches were known" in out


def test_the_full_statement_is_printed(run):
    code, out, _ = run(*TRAIN, "--steps", "20", "--noise", "1.5", "--statement")
    assert code == 0
    assert "Not covered:" in out and "differentially private for one record" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "1"], "one of --epochs and --steps"),
        (["--steps", "10"], "one of --epsilon and --noise"),
        (["--steps", "10", "--epsilon", "-1"], "epsilon"),
        (["--steps", "10", "--epsilon", "1", "--relation", "nearby"], "relation"),
        (["--epochs", "nan", "--epsilon", "1"], "--epochs"),
        (["--steps", "10", "--epsilon", "1", "--max-contributions", "0"], "max_contributions"),
    ],
)
def test_wrong_usage_is_explained(run, options, message):
    code, out, err = run(*TRAIN, *options)
    assert code == 2 and message in err and not out
