"""Claims of fitted pipelines and of their steps."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    StandardScaler,
)

from tests.training.pipelines.steps import ACROSS, DECLARED, both, classifier, standardizer
from veracal.accounting import NotPrivate, Unit
from veracal.queries import Curator
from veracal.training import BoundedScaler, NormClipper, PrivateStandardizer
from veracal.training.pipeline import PrivatePipeline, make_private_pipeline
from veracal.training.pipeline_steps import PIPELINE_STEP


def test_a_frozen_step_is_neither_fitted_nor_charged_again(data, ledger):
    scaler = standardizer().fit_records(data)
    before = scaler.mean_.copy()
    pipeline = make_private_pipeline(FrozenEstimator(scaler), classifier())
    assert pipeline.event() == classifier().event()
    Curator(data, ledger).fit(pipeline)
    np.testing.assert_array_equal(scaler.mean_, before)
    assert pipeline.private_ and scaler.private_
    np.testing.assert_array_equal(pipeline.transform_dataset(data).X, scaler.transform(data.X))


def test_frozen_steps_must_be_fitted_row_wise_and_private(data):
    pca = PCA(2).fit(np.eye(3))
    assert make_private_pipeline(FrozenEstimator(pca), classifier()).fit_records(data).private_
    for frozen, values in (
        (PCA(2), "not fitted"),
        (FunctionTransformer(ACROSS["mean"]).fit(data.X), "each row independently"),
        (BoundedScaler().fit(data.X), "The frozen estimator is not private: the bounds"),
    ):
        with pytest.raises(ValueError, match=values):
            make_private_pipeline(FrozenEstimator(frozen), classifier()).check_records(data)


def test_classifiers_must_be_last_and_are_charged(data):
    plain = make_pipeline(NormClipper(), classifier())
    for steps, values in (
        ((classifier(), classifier()), "only be the last step"),
        ((plain, classifier()), "only be the last step"),
        ((FeatureUnion([("a", classifier())]), classifier()), "only be the last step"),
        ((NormClipper(), plain), "Wrap its content in a PrivatePipeline"),
        ((NormClipper(), FrozenEstimator(classifier().fit_records(data))), "transformer as"),
    ):
        with pytest.raises(ValueError, match=values):
            make_private_pipeline(*steps).event()
    nested = make_private_pipeline("passthrough", PrivatePipeline(plain.steps))
    assert nested.event() == classifier().event()


def test_anything_but_a_data_set_is_rejected(data):
    with pytest.raises(ValueError, match="Expected a data set of veracal.data, got ndarray"):
        make_private_pipeline(NormClipper(), classifier()).fit_records(data.X)


def test_a_step_may_occur_only_once(data):
    scaler = standardizer()
    for steps in ((scaler, scaler), (FeatureUnion([("a", scaler), ("b", scaler)]),)):
        with pytest.raises(ValueError, match="every step once"):
            make_private_pipeline(*steps, classifier()).event()
    # These are copied before they are fitted.
    twice = ColumnTransformer([("a", scaler, [0]), ("b", scaler, [1])])
    assert make_private_pipeline(twice, classifier()).fit_records(data).private_


def test_claims_are_recorded_when_a_fit_ends(data):
    leaky = make_private_pipeline(StandardScaler(), classifier(**DECLARED))
    leaky.fit(data.X, data.labels).set_params(standardscaler="passthrough")
    assert not leaky.private_
    paid = make_private_pipeline(standardizer(), classifier()).fit_records(data)
    event, text = paid.event_, paid.statement_.text()
    paid.set_params(privatestandardizer="passthrough", privatelogisticregression__delta=0.1)
    paid.set_params(privatelogisticregression__unit=Unit("patient"))
    assert paid.event_ == event and paid.statement_.text() == text
    paid.set_params(privatelogisticregression=classifier())
    assert paid.private_ and paid.event_ == event


@pytest.mark.parametrize("plain", [False, True])
def test_an_interrupted_fit_makes_no_claim(data, plain, monkeypatch):
    pipeline = make_private_pipeline(standardizer(size=300), classifier(**DECLARED))

    def fit():
        return pipeline.fit(data.X, data.labels) if plain else pipeline.fit_records(data)

    assert fit().private_

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.steps[-1][1], "_learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit()
    assert not pipeline.private_ and pipeline.event_ is None
    assert pipeline.statement_.reasons == ("its fit did not finish",)


def test_a_pipeline_fitted_step_by_step_makes_no_claim(data):
    pipeline = make_private_pipeline(standardizer(), classifier())
    with pytest.raises(NotFittedError):
        _ = pipeline.private_
    pipeline.fit_records(data)
    assert not pipeline[1:].private_ and isinstance(pipeline[1:].statement_, NotPrivate)
    free = make_private_pipeline(NormClipper(), BoundedScaler((0, 1))).fit_records(data)
    assert free.private_ and free.statement_.reasons == ("nothing in it is charged",)


class Dearer(PrivateStandardizer):
    """Costs more after the fit than it stated before."""

    def _learn(self, rows, size):
        reasons = super()._learn(rows, size)
        self.noise_multiplier /= 2
        return reasons

    def _fit_rows(self, rows, size):
        super()._fit_rows(rows, size)
        self.event_ = self._cost()
        return self


def test_a_fit_with_another_cost_than_charged_is_not_private(data):
    dear = make_private_pipeline(Dearer((-3, 3), noise_multiplier=4.0), classifier())
    assert dear.fit_records(data).not_private_because_ == (
        "its steps have another cost than was charged",
    )


def test_a_step_of_a_pipeline_makes_no_claim(data):
    inner = make_private_pipeline(both(), classifier())
    pipeline = make_private_pipeline(NormClipper(9.0), inner)
    for _ in range(2):
        pipeline.fit_records(data)
        assert pipeline.private_ and pipeline.event_ == pipeline.event()
        assert not inner.private_ and inner.statement_.reasons == (PIPELINE_STEP,)
        for part in (inner[-1], inner[0].transformers_[0][1]):
            assert not part.private_ and part.statement_.reasons == (PIPELINE_STEP,)
    assert inner.fit_records(data).private_
    alone = clone(inner[-1]).fit_records(data)
    assert alone.private_ and alone.statement_.epsilon < pipeline.statement_.epsilon
    transforming = make_private_pipeline(standardizer(size=300))
    transforming.fit_transform(data.X)
    assert transforming.private_ and not transforming[0].private_


def test_inconsistent_steps_make_no_claim_in_fit(data):
    pipeline = make_private_pipeline(
        standardizer(relation="replace-one"), classifier(**DECLARED)
    ).fit(data.X, data.labels)
    assert not pipeline.private_ and pipeline.event_ is None
    assert "relation" in pipeline.not_private_because_[0]
