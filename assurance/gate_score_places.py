"""The scores of a record have the same bits at every position and among any others.

A private count or sum over scores allows for one record. Linear algebra may add up a row
differently at other positions of a block (MKL on one processor: at every other position, for 10
inputs and 2 outputs), and one more record moves all others by a position. Scores are therefore
computed in blocks only if a check on synthetic rows finds all positions equal. The former check
compared a single row: with two outputs, 28 of 100 linear networks and 56 of 100 small
perceptrons passed it although every other position rounds differently, and one more record
moved a count of correct predictions by 3,199, where 1 was charged. Here modules that add up
backwards at some positions are scored with one more record in front; no other record may change
a bit. Some have units that are zero for all synthetic rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from sklearn.preprocessing import FunctionTransformer
from torch import Tensor, nn

from veracal.data import Dataset, Scores, score
from veracal.data import scoring as classifiers
from veracal.data.scoring import equivalent_positions, score_independently
from veracal.neural import NetworkScores
from veracal.neural import examples as scoring
from veracal.training import PrivateLogisticRegression, PrivateSearch
from veracal.training.pipeline import PrivatePipeline, make_private_pipeline
from veracal.training.pipeline_steps import synthetic_dataset, transform_both
from veracal.training.search import unwrap_classifier

NAME = "score_places"
Places = Callable[[int], Sequence[int]]
OTHERS: dict[str, Places] = {
    "every other place": lambda n: range(1, n, 2),
    "the second half": lambda n: range(n // 2, n),
    "the last place": lambda n: (n - 1,) if n > 1 else (),
}
RECORDS, WIDTH, SEEDS = 80, 10, 12


class Backwards(nn.Module):
    """Two layers, the last of which adds in reverse order at some positions."""

    def __init__(self, seed: int, outputs: int, places: Places, *, hidden_bias: float) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(seed)
        self.places = places
        self.first = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=draws))
        self.bias = nn.Parameter(torch.full((WIDTH,), hidden_bias))
        self.last = nn.Parameter(torch.randn(outputs, WIDTH, generator=draws))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(_added(x, self.first) + self.bias)
        straight, backwards = (
            _added(some, weights)
            for some, weights in (
                (hidden, self.last),
                (hidden.flip(1), self.last.flip(1)),
            )
        )
        other = torch.zeros(len(x), 1, dtype=torch.bool)
        other[list(self.places(len(x)))] = True
        return torch.where(other, backwards, straight)


def _added(x: Tensor, weights: Tensor) -> Tensor:
    """Products added one after the other in float32, the same at every place."""
    products = x.detach().numpy()[:, :, None] * weights.detach().numpy().T
    return torch.from_numpy(np.add.accumulate(products, axis=1)[:, -1])


# ---------------------------------------------------------------- mutants


def one_row_compared(forward: Any, made_up: Any, *alike: Any) -> Any:
    """The former check: one synthetic row at every position."""
    whole = len(equivalent_positions(forward, made_up)) == len(made_up)
    batch = made_up if whole else made_up[:1]

    def score(rows: Any) -> Any:
        places = np.arange(len(batch))
        return np.concatenate(
            list(classifiers.score_at_positions(forward, rows, places, np.empty_like(batch)))
        )

    return score


def own_weights_alone(forward: Any, made_up: Any, *alike: Any) -> Any:
    """A trial with the weights of the network, and no others."""
    return score_independently(forward, made_up)


def few_logits_compared(ask: Any, width: int, dtype: Any, classes: int) -> Any:
    """Four synthetic rows, for any number of logits."""
    return CLASSIFIERS(ask, width, dtype, 10)


def scored_together(model: Any, dataset: Dataset) -> Scores:
    """Scores of a pipeline as they were: all rows in one call."""
    return Scores.from_logits(model.logits(dataset.X), dataset.y)


def turned_together(pipeline: PrivatePipeline, dataset: Dataset) -> Dataset:
    """Rows of a search as they were turned: many in one call."""
    stand_in = synthetic_dataset(dataset, "add-remove")
    for _, step in pipeline.steps[:-1]:
        dataset, stand_in = transform_both(step, dataset, stand_in)
    return dataset


@dataclass(frozen=True)
class Subject:
    """How scores are computed: of networks, of classifiers, of pipelines and in searches."""

    networks: Any = score_independently
    places: Any = classifiers._positions
    score: Any = score
    transform_dataset: Any = PrivatePipeline.transform_dataset


CLASSIFIERS = classifiers._positions
CORRECT = Subject()
MUTANTS = {
    "one made-up row is compared": Subject(networks=one_row_compared),
    "a trial with the network's own weights alone": Subject(networks=own_weights_alone),
    "four logits of a classifier are compared": Subject(places=few_logits_compared),
    "a pipeline is asked for all rows at once": Subject(score=scored_together),
    "a search turns many rows at once": Subject(transform_dataset=turned_together),
}


# ---------------------------------------------------------------- the gate


def run(subject: Subject, *, long: bool) -> str:
    """Put one record in front of others, and count whose scores change."""
    scored = 0
    with (
        mock.patch.object(scoring, "score_independently", subject.networks),
        mock.patch.object(classifiers, "_positions", subject.places),
        mock.patch.object(PrivatePipeline, "transform_dataset", subject.transform_dataset),
    ):
        for name, others in OTHERS.items():
            for changed in all_changes(others, subject):
                assert not changed, (
                    f"{changed} records changed bits ({name} rounds differently)"
                )
                scored += 1
    return f"0 of {RECORDS} records change bits beside one more, in {scored} models"


def all_changes(others: Places, subject: Subject) -> Iterator[int]:
    """Records of each model whose scores change, single ones first."""
    yield pipeline_changes(others, subject.score)
    yield network_changes(0, 2, others, hidden_bias=-40.0)
    for seed in range(SEEDS):
        for outputs in (1, 2):
            yield network_changes(seed, outputs, others, hidden_bias=0.0)
        yield classifier_changes(seed, others)


def network_changes(seed: int, outputs: int, others: Places, *, hidden_bias: float) -> int:
    """Records of a network whose logits change when one more precedes them."""
    module = Backwards(seed, outputs, others, hidden_bias=hidden_bias).eval()
    rows = np.random.default_rng(seed).normal(0, 20, (RECORDS + 1, WIDTH)).astype(np.float32)
    scores = NetworkScores(module, rows, torch.from_numpy)
    return int((scores(rows)[1:] != scores(rows[1:])).any(axis=1).sum())


class Classifier:
    """A classifier of two classes with one logit, added up in float32."""

    def __init__(self, seed: int, others: Places) -> None:
        self.module = Backwards(seed, 1, others, hidden_bias=0.0)

    def decision_function(self, rows: Any) -> Any:
        with torch.no_grad():
            return self.module(torch.from_numpy(np.array(rows)))[:, 0].numpy()


def classifier_changes(seed: int, others: Places) -> int:
    """The same for any classifier."""
    model = Classifier(seed, others)
    rows = np.random.default_rng(seed).normal(0, 20, (RECORDS + 1, WIDTH)).astype(np.float32)
    more, fewer = (classifiers.compute_logits(model, some, 2) for some in (rows, rows[1:]))
    return int((more[1:] != fewer).any(axis=1).sum())


def pipeline_changes(others: Places, score: Any) -> int:
    """Records behind a function of the user's: of their scores, and of predictions counted."""
    first, rng = Backwards(0, WIDTH, others, hidden_bias=0.0), np.random.default_rng(0)

    def product(rows: Any) -> Any:
        with torch.no_grad():
            return first(torch.from_numpy(np.array(rows, np.float32))).numpy()

    rows = rng.normal(0, 20, (RECORDS + 1, WIDTH)).astype(np.float32)
    labels = rng.integers(2, size=len(rows))
    last = PrivateLogisticRegression(1.0, epochs=1, random_state=0)
    pipeline = make_private_pipeline(FunctionTransformer(product), last)
    more, fewer = (
        Dataset(rows[start:], labels[start:], (0, 1), size=RECORDS) for start in (0, 1)
    )
    pipeline.fit_records(more)
    scores = score(pipeline, more).values[1:] != score(pipeline, fewer).values
    search = PrivateSearch(pipeline, [{}])
    search.best_estimator_ = pipeline
    turned = unwrap_classifier(search, more)[0].X[1:] != unwrap_classifier(search, fewer)[0].X
    return int(scores.any(axis=1).sum()) + int(turned.any(axis=1).sum())
