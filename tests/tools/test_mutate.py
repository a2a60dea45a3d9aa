"""Mutants are single changes that compile, and their score has an honest interval."""

import ast

import pytest

from tests.tools import mutate
from tests.tools.branches import ROOT, files


def test_mutants_compile_and_differ():
    path = next(path for path in files() if path.stem == "clipping")
    mutants = list(mutate.mutants_of(path))
    text = path.read_bytes()
    assert len(mutants) > 20
    assert len({mutant.key for mutant in mutants}) == len(mutants)
    before = ast.dump(ast.parse(text))
    for mutant in mutants:
        assert path == ROOT / mutant.file
        changed = text[: mutant.start] + mutant.new.encode() + text[mutant.end :]
        assert ast.dump(ast.parse(changed)) != before, mutant


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("a < b", {"a <= b"}),
        ("-a", {"a"}),
        ("x = 1.5", {"3.0"}),
        ("a and not b", {"a or not b", "b"}),
        ("if a: return b", {"not a", "return None"}),
        ("raise ValueError(a + 1)", {"pass"}),
        ("x: tuple[1] = max(a)", {"min(a)"}),
        ("f'{a + 1}'", set()),
    ],
)
def test_changes_of_a_statement(statement, changed):
    nodes = mutate.statements(ast.parse(statement))
    found = {ast.unparse(new) for node in nodes for _, _, new in mutate.changes(node)}
    assert found == changed


def test_the_interval_is_wilsons():
    low, high = mutate.wilson(90, 100)
    # Roots of (p - 0.9)² = z² p (1 - p) / 100.
    for p in (low, high):
        assert (p - 0.9) ** 2 == pytest.approx(1.959964**2 * p * (1 - p) / 100)
    assert low < 0.9 < high
