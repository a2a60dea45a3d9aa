"""Every command, once, in the order of a day's work."""

import shlex

import click
import numpy as np
import pytest
import typer

from tests.cli.sample_tables import table, write
from veracal.cli import app
from veracal.ledger import Ledger

DAY = """
data list
data show breast-cancer
data check visits.csv --schema visits.toml
schema check visits.toml
schema draft plain.csv --target back --out draft.toml
plan train --records 600 --batch 60 --epochs 5 --epsilon 1
plan audit --individuals 100 --error 0.1
ledger open --data visits.csv --epsilon 4 --delta 1e-3
ledger open count.ledger --epsilon 1
data count visits.csv --schema visits.toml --epsilon 0.1 --ledger count.ledger --json
fit visits.csv --schema visits.toml --epsilon 2 --out model
predict model visits.csv --out predictions.csv
evaluate scored.npz
report model --out page.html
fit breast-cancer --epsilon 8 --out other
compare model other
recalibrate scored.npz --epsilon 1 --map-out map.json
audit visits.csv --schema visits.toml --epsilon 1 --runs 5 --out audit
ledger list
ledger show visits.csv
ledger verify visits.csv
ledger extend visits.csv --epsilon 1
ledger abandon visits.csv --run 1
ledger export visits.csv
ledger extend scored.npz --epsilon 3
source init north --name North --epsilon 3
federation init study --name Study
source enroll north --coordinator study/coordinator.pub --epsilon 1 --max-per-answer 0.5 \
 --scores scored.npz --model weights.npz --min-records 100 --max-records 1000 \
 --deadline 2 --expires 2099-12-31 --out north.terms --yes
federation add study north.terms --yes
federation status study
source status north
source log north
source revoke north NUMBER --yes
doctor
"""
# Commands that run until they are stopped, or that need what is not built in.
ELSEWHERE = {
    "source serve": "test_until_stopped.py",
    "federation superlink": "test_until_stopped.py",
    "federation local": "test_federation_local.py",
    "data features": "test_data.py",
}


def registered() -> set[str]:
    """Every command that `--help` leads to."""

    def below(command: click.Command, *names: str) -> set[str]:
        if not isinstance(command, click.Group):
            return {" ".join(names)}
        context = click.Context(command)
        named = [
            (name, command.get_command(context, name))
            for name in command.list_commands(context)
        ]
        return {each for name, actual in named for each in below(actual, *names, name)}

    return below(typer.main.get_command(app))


def typed() -> list[list[str]]:
    """The lines of the day, as words."""
    return [shlex.split(line) for line in DAY.strip().replace("\\\n", "").splitlines()]


def test_every_command_is_tested():
    commands = registered()
    here = {
        name
        for words in typed()
        for name in commands
        if words[: len(name.split())] == name.split()
    }
    assert here | set(ELSEWHERE) == commands and not here & set(ELSEWHERE)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_groups_print_their_help(run, name):
    code, out, _ = run(*name.split(), "--help")
    assert code == 0 and f"veracal {name}" in " ".join(out.split())


def test_a_typical_workflow(run, tmp_path):
    write(tmp_path)
    table().write_csv("plain.csv")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 2))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    np.savez("scored.npz", logits=3 * logits, labels=labels)
    np.savez("weights.npz", layer=np.eye(2))
    for words in typed():
        if "NUMBER" in words:
            (number,) = (path.name for path in (tmp_path / "north" / "enrolled").iterdir())
            words[words.index("NUMBER")] = number[:6]
        code, out, err = run(*words)
        assert code == 0, f"veracal {shlex.join(words)}: {err}"
        assert out or err
    assert (tmp_path / "page.html").exists() and (tmp_path / "map.json").exists()
    assert len(Ledger("count.ledger").entries()) == 1
