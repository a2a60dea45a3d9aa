"""A holder charges, then looks."""

import copy
import pickle
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from veracal.accounting.events import Budget, DiscreteGaussian, DiscreteLaplace, Pure, Unit
from veracal.data import Dataset, Scores, limit_contributions
from veracal.errors import AnswerError, BudgetError, ConflictError, DataError
from veracal.ledger.ledger import open_ledger
from veracal.ledger.policies import Item
from veracal.mechanisms.discrete_noise import discrete_laplace_std
from veracal.mechanisms.progress import StepProgress, TrainingCurve
from veracal.queries.curator import Curator, canonical_request, exposes_weights
from veracal.queries.query import BoundedSum, gaussian_event, laplace_event
from veracal.queries.score_queries import Brier, Correct, Count, NegativeLogLikelihood
from veracal.testing.queries import CountingQuery
from veracal.training import PrivateLogisticRegression, PrivateSearch


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return Scores.from_logits(rng.normal(size=(200, 3)), rng.integers(3, size=200))


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return Dataset(rng.normal(size=(50, 2)), rng.integers(2, size=50), ("no", "yes"))


@pytest.fixture
def make_ledger(tmp_path):
    def make(epsilon=1.0, name="a", kind="pure", **settings):
        return open_ledger(tmp_path / f"{name}.ledger", Budget(epsilon, **settings), kind=kind)

    return make


def test_an_answer_is_the_statistic_plus_noise(scores, make_ledger):
    holder = Curator(scores, make_ledger(1000.0))
    release = holder.answer(NegativeLogLikelihood(), micro_epsilon=900_000_000)
    exact = NegativeLogLikelihood().evaluate(scores)[0]
    assert release.units[0] != exact
    assert abs(release.units[0] - exact) < 2**20  # 80 times the noise
    assert release.noise_std == discrete_laplace_std(release.event.noise) * 2**-20


def test_a_release_states_the_charge(scores, make_ledger):
    ledger = make_ledger()
    release = Curator(scores, ledger).answer(Correct(), micro_epsilon=250_000, request="q")
    assert release.event == DiscreteLaplace(4.0, 1, "add-remove")
    assert release.epsilon == 0.25 == ledger.spent().epsilon
    assert release.private and release.head == ledger.head
    (entry,) = ledger.entries()
    assert (entry.event, entry.purpose, entry.request) == (release.event, "correct", "q")


def test_a_repeated_answer_points_to_its_own_entry(scores, make_ledger):
    holder = Curator(scores, make_ledger())
    first = holder.answer(Correct(), micro_epsilon=250_000)
    later = holder.answer(Brier(), micro_epsilon=250_000)
    again = holder.answer(Correct(), micro_epsilon=250_000)
    assert [first.head, later.head] == [entry.hash for entry in holder.ledger.entries()]
    assert again.head == first.head != holder.ledger.head == later.head
    assert holder.ledger.verify(again.head) == later.head


def test_the_ledger_determines_the_relation(scores, make_ledger):
    holder = Curator(scores, make_ledger(relation="replace-one"))
    query = NegativeLogLikelihood(centered=True, bits=0)
    event = laplace_event(query, 500_000, holder.relation, holder.unit)
    assert event == DiscreteLaplace(20.0, 10, "replace-one")


def test_a_repeated_query_gets_the_same_answer_at_no_cost(scores, make_ledger):
    holder = Curator(scores, make_ledger())
    first = holder.answer(Brier(), micro_epsilon=400_000)
    assert holder.answer(Brier(), micro_epsilon=400_000) == first
    assert Curator(scores, holder.ledger).answer(Brier(), micro_epsilon=400_000) == first
    assert holder.ledger.spent().epsilon == 0.4
    assert holder.answer(Brier(top_label=True), micro_epsilon=400_000) != first
    assert holder.ledger.spent().epsilon == 0.8


MINE = Scores.from_logits([[0.0, 1.0]], ["a"], classes=["a", "b"], name="mine")


@pytest.mark.parametrize(
    "other",
    [
        {"query": Correct()},
        {"query": Brier(bits=19)},
        {"event": DiscreteLaplace(3.0, 1)},
        {"records": replace(MINE, name="others")},
        {"records": replace(MINE, classes=("b", "a"))},
        {
            "records": Scores.from_probabilities(
                [[0.5, 0.5]], ["a"], classes=["a", "b"], name="mine"
            )
        },
        {"partition": "test"},
        {"version": "2"},
        {"query": BoundedSum("brier", np.sign, 0, 2)},
    ],
    ids=str,
)
def test_every_public_property_of_a_query_distinguishes_it(other):
    usual = dict(
        query=Brier(), event=DiscreteLaplace(2.0, 1), records=MINE, partition=None, version="1"
    )
    assert canonical_request(**usual) == canonical_request(**usual)
    assert canonical_request(**usual) != canonical_request(**{**usual, **other})


def test_settings_distinguish_queries():
    hot, cold = (
        BoundedSum("gap", np.sign, -1, 1, settings={"temperature": t}) for t in (1.0, 2.0)
    )
    bodies = {canonical_request(query, Pure(0.1), MINE, None, "") for query in (hot, cold)}
    assert len(bodies) == 2


def test_changed_records_are_another_version(scores, make_ledger):
    ledger = make_ledger()
    first = Curator(scores, ledger, version="2024").answer(Count(), micro_epsilon=100_000)
    fewer = Curator(scores.take(np.arange(9)), ledger, version="2025")
    assert fewer.answer(Count(), micro_epsilon=100_000).value < first.value
    assert ledger.spent().epsilon == 0.2


def test_another_query_under_the_same_request_is_a_conflict(scores, make_ledger):
    holder = Curator(scores, make_ledger())
    holder.answer(Brier(), micro_epsilon=100_000, request="a")
    with pytest.raises(ConflictError):
        holder.answer(Correct(), micro_epsilon=100_000, request="a")


def test_queries_beyond_the_budget_are_rejected_before_reading_records(scores, make_ledger):
    holder, query = Curator(scores, make_ledger()), CountingQuery(Correct())
    with pytest.raises(BudgetError):
        holder.answer(query, micro_epsilon=1_000_001)
    assert query.seen == []
    holder.answer(query, micro_epsilon=1_000_000)
    assert query.seen == [200]


def test_an_inapplicable_query_costs_nothing(scores, data, make_ledger):
    ledger = make_ledger()
    for records in (data, Scores.from_logits(scores.values)):
        with pytest.raises(DataError):
            Curator(records, ledger).answer(Correct(), micro_epsilon=1000)
    floats = BoundedSum("x", lambda s: s.values, 0, 1)
    with pytest.raises(ValueError, match="one per record"):
        Curator(scores, ledger).answer(floats, micro_epsilon=1000)
    assert ledger.spent().epsilon == 0


def test_a_failure_on_the_records_is_charged(scores, make_ledger):
    holder, query = Curator(scores, make_ledger()), CountingQuery(Correct(), fails=True)
    for _ in range(2):
        with pytest.raises(AnswerError):
            holder.answer(query, micro_epsilon=300_000)
    assert query.seen == [200]
    assert holder.ledger.spent().epsilon == 0.3


class InvalidQuery:
    """A query that returns what it should not."""

    def __init__(self, result):
        self.result = result

    def __getattr__(self, name):
        return getattr(Correct(), name)

    def evaluate(self, records):
        return self.result


@pytest.mark.parametrize("result", [np.array([1.5]), np.array([1, 2]), [1], 1])
def test_noise_is_added_to_integers_only(scores, make_ledger, result):
    holder = Curator(scores, make_ledger())
    with pytest.raises(ValueError, match="int64"):
        holder.answer(InvalidQuery(result), micro_epsilon=1000)
    assert holder.ledger.spent().epsilon == 0


@pytest.mark.parametrize("bad", [0, -1, 0.5, float("nan"), True])
def test_micro_epsilon_must_be_an_integer(scores, make_ledger, bad):
    with pytest.raises(ValueError, match="micro_epsilon"):
        Curator(scores, make_ledger()).answer(Count(), micro_epsilon=bad)


def test_partitions_compose_in_parallel(scores, tmp_path):
    ledger = open_ledger(tmp_path / "p.ledger", Budget(1.0), partitions=("train", "test"))
    for part, rows in (("train", np.arange(100)), ("test", np.arange(100, 200))):
        holder = Curator(scores.take(rows), ledger, partition=part)
        holder.answer(Count(), micro_epsilon=1_000_000)
    assert ledger.spent().epsilon == 1.0


# ---------------------------------------------------------------- units


def test_all_rows_of_a_unit_are_charged_together(scores, make_ledger):
    unit = Unit("patient", max_contributions=4)
    ledger = make_ledger(unit=unit)
    mine = replace(scores, units=np.arange(200) // 4)
    release = Curator(mine, ledger).answer(Count(), micro_epsilon=500_000)
    assert release.event == DiscreteLaplace(8.0, 1)
    assert ledger.spent().epsilon == 0.5


def test_scores_with_too_many_rows_per_unit_are_rejected(scores, make_ledger):
    ledger = make_ledger(unit=Unit("patient", max_contributions=3))
    with pytest.raises(DataError, match="at most 3 rows of patient"):
        Curator(replace(scores, units=np.arange(200) // 4), ledger)


def test_data_with_units_must_declare_the_rows_per_unit(data, make_ledger):
    ledger = make_ledger(unit=Unit("patient", max_contributions=2))
    mine = replace(data, units=np.arange(50) // 2)
    with pytest.raises(DataError, match="no declared bound"):
        Curator(mine, ledger)
    with pytest.raises(DataError, match="up to 3"):
        Curator(limit_contributions(mine, max_contributions=3), ledger)
    assert Curator(limit_contributions(mine, max_contributions=2), ledger).partition is None


def test_a_ledger_for_records_rejects_records_with_units(scores, make_ledger):
    with pytest.raises(DataError, match="protects one record"):
        Curator(replace(scores, units=np.arange(200)), make_ledger())


@pytest.mark.parametrize("max_contributions", [1, 3])
def test_a_ledger_for_units_rejects_records_without_unit_ids(
    scores, make_ledger, max_contributions
):
    ledger = make_ledger(unit=Unit("patient", max_contributions=max_contributions))
    for records in (scores, Dataset(np.zeros((4, 2)), np.zeros(4, int), (0, 1), size=4)):
        with pytest.raises(DataError, match="the patient of each row, found no ids"):
            Curator(records, ledger)
    assert not ledger.length()


def test_only_records_are_accepted(make_ledger):
    with pytest.raises(DataError, match="scores or a data set"):
        Curator([[1, 2]], make_ledger())


def test_only_a_ledger_can_be_charged(scores):
    with pytest.raises(ValueError, match=r"a Ledger of .*got 'x'\. Use Ledger\(path\)"):
        Curator(scores, "x")


def test_the_repr_of_a_curator_contains_no_record(scores, make_ledger):
    holder = Curator(scores, make_ledger())
    assert str(scores.values[0, 0])[:6] not in repr(holder)
    assert not hasattr(holder, "records")


def test_copies_of_a_curator_share_the_ledger(scores, make_ledger):
    holder = Curator(scores, make_ledger())
    for twin in (copy.deepcopy(holder), pickle.loads(pickle.dumps(holder))):
        twin.answer(Count(), micro_epsilon=300_000, request=str(id(twin)))
    assert holder.ledger.spent().epsilon == 0.6


# ---------------------------------------------------------------- fit


class Model:
    """A model that says what it costs and remembers what it saw."""

    def __init__(self, epsilon=0.5, stated_epsilon=None, relation="add-remove"):
        self.epsilon, self.stated_epsilon, self.relation, self.rows = (
            epsilon,
            stated_epsilon,
            relation,
            None,
        )

    def event(self):
        return Pure(self.epsilon, self.relation)

    def fit(self, X, y):
        self.rows = X, y
        if self.stated_epsilon is not None:
            self.event_ = Pure(self.stated_epsilon, self.relation)
        return self


def test_a_fit_is_charged_before_it_runs(data, make_ledger):
    ledger = make_ledger()
    model = Model(stated_epsilon=0.5)
    assert Curator(data, ledger).fit(model, purpose="logistic regression") is model
    assert model.rows[0] is data.X and model.rows[1] is data.y
    assert ledger.spent().epsilon == 0.5
    assert ledger.entries()[0].purpose == "logistic regression"


def test_a_fit_beyond_the_budget_reads_no_record(data, make_ledger):
    ledger, model = make_ledger(), Model(epsilon=1.5)
    with pytest.raises(BudgetError):
        Curator(data, ledger).fit(model)
    assert model.rows is None and ledger.spent().epsilon == 0


def test_a_failed_fit_is_not_refunded(data, make_ledger):
    class Fails(Model):
        def fit(self, X, y):
            raise RuntimeError("no")

    ledger = make_ledger()
    with pytest.raises(RuntimeError, match="no"):
        Curator(data, ledger).fit(Fails())
    assert ledger.spent().epsilon == 0.5


def test_a_model_with_another_cost_is_not_released(data, make_ledger):
    with pytest.raises(ValueError, match="Do not release"):
        Curator(data, make_ledger()).fit(Model(stated_epsilon=0.7))


ONCE = {"request": "study", "body": b"settings"}


def test_fit_once_charges_once(data, make_ledger):
    ledger, fits = make_ledger(), []

    class Counts(Model):
        def fit(self, X, y):
            fits.append(len(X))
            return super().fit(X, y)

    holder = Curator(data, ledger)
    first = holder.fit_once(Counts(), lambda model: b"weights %d" % len(fits), **ONCE)
    again = holder.fit_once(Counts(), lambda model: b"weights %d" % len(fits), **ONCE)
    assert first == again == b"weights 1" and fits == [len(data)]
    assert ledger.spent().epsilon == 0.5
    with pytest.raises(ConflictError):  # something else under the same id
        holder.fit_once(Counts(), lambda model: b"", request="study", body=b"others")
    with pytest.raises(ConflictError):
        holder.fit_once(Counts(epsilon=0.1), lambda model: b"", **ONCE)
    assert fits == [len(data)]


def test_an_interrupted_fit_is_repeated_under_its_reservation(data, make_ledger):
    class Interrupted(Model):
        def fit(self, X, y):
            raise KeyboardInterrupt

    ledger = make_ledger()
    with pytest.raises(KeyboardInterrupt):
        Curator(data, ledger).fit_once(Interrupted(), lambda model: b"", **ONCE)
    assert ledger.spent().epsilon == 0.5
    assert [entry.request for entry in ledger.pending()] == ["study"]
    assert Curator(data, ledger).fit_once(Model(), lambda model: b"done", **ONCE) == b"done"
    assert ledger.spent().epsilon == 0.5 and ledger.pending() == ()
    ledger.verify()


def test_other_charges_are_possible_during_a_fit(data, make_ledger):
    ledger = make_ledger()

    class Charges(Model):
        def fit(self, X, y):
            ledger.charge(Pure(0.1), "meanwhile")
            return super().fit(X, y)

    assert Curator(data, ledger).fit_once(Charges(), lambda model: b"m", **ONCE) == b"m"
    assert ledger.spent().epsilon == 0.6


def test_of_two_fits_both_return_the_recorded_model(data, make_ledger):
    ledger = make_ledger()

    class Overtaken(Model):
        def fit(self, X, y):
            warnings.warn("about weights that are lost", stacklevel=1)  # an error in tests
            other = Curator(data, ledger).fit_once(Model(), lambda model: b"first", **ONCE)
            assert other == b"first"
            return super().fit(X, y)

    late = Curator(data, ledger).fit_once(Overtaken(), lambda model: b"second", **ONCE)
    assert late == b"first" and ledger.spent().epsilon == 0.5


def test_the_callers_model_has_no_unrecorded_weights(data, make_ledger):
    class Interrupted(Model):
        def fit(self, X, y):
            super().fit(X, y)
            raise KeyboardInterrupt

    model = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Curator(data, make_ledger()).fit_once(model, lambda model: b"", **ONCE)
    assert model.rows is None


def test_a_fit_with_a_hook_that_sees_weights_charges_every_attempt(data, make_ledger):
    class Interrupted(Model):
        def fit(self, X, y):
            raise KeyboardInterrupt

    ledger = make_ledger()
    holder = Curator(data, ledger)
    broken, whole = Interrupted(epsilon=0.3), Model(epsilon=0.3)
    broken.on_step = whole.on_step = lambda model, step: None
    with pytest.raises(KeyboardInterrupt):
        holder.fit_once(broken, lambda model: b"", **ONCE)
    assert holder.fit_once(whole, lambda model: b"done", **ONCE) == b"done"
    assert ledger.spent().epsilon == 0.6
    outcomes = [(entry.request, entry.outcome) for entry in ledger.entries()]
    assert outcomes == [
        ("study", "reserved"),
        (None, "superseded"),
        ("study [attempt 2]", "reserved"),
        (None, "answered"),
    ]
    # What was recorded is returned, with and without a hook, at no cost.
    assert holder.fit_once(whole, lambda model: b"other", **ONCE) == b"done"
    assert holder.fit_once(Model(epsilon=0.3), lambda model: b"other", **ONCE) == b"done"
    assert ledger.spent().epsilon == 0.6 and ledger.pending() == ()
    ledger.verify()


def test_removing_the_hook_does_not_make_a_repeated_attempt_free(data, make_ledger):
    class Interrupted(Model):
        def fit(self, X, y):
            raise KeyboardInterrupt

    ledger = make_ledger()
    broken = Interrupted(epsilon=0.3)
    broken.on_step = lambda model, step: None
    with pytest.raises(KeyboardInterrupt):
        Curator(data, ledger).fit_once(broken, lambda model: b"", **ONCE)
    kept = Curator(data, ledger).fit_once(Model(epsilon=0.3), lambda model: b"done", **ONCE)
    assert kept == b"done" and ledger.spent().epsilon == 0.6


def test_step_progress_does_not_expose_weights():
    class Nested:
        def get_params(self):
            return {"inner__on_step": hook}

    model = Model()
    model.on_step = StepProgress(lambda done, total: None)
    assert not exposes_weights(model)
    model.on_step = print
    assert exposes_weights(model)
    hook = None
    assert not exposes_weights(Nested())
    hook = print
    assert exposes_weights(Nested())


def fit_with_curve(data, ledger, curve):
    """Fit for five steps."""
    model = PrivateLogisticRegression(
        0.3, 1e-6, steps=5, sampling_rate=0.5, size=50, on_step=curve
    )
    return Curator(data, ledger).fit_once(model, lambda model: model.coef_.tobytes(), **ONCE)


def test_a_training_curve_is_empty_before_the_model_is_recorded(data, make_ledger):
    ledger, counts, seen = make_ledger(delta=1e-5, kind="open"), [], []

    def note(done, total):
        counts.append((done, total))
        seen.append(curve.losses)

    curve = TrainingCurve(data, note)
    fit_with_curve(data, ledger, curve)
    assert counts == [(i, 5) for i in range(1, 6)] and seen == [()] * 5
    assert len(curve.losses) == 5 and np.isfinite(curve.losses).all()


def test_losses_of_unrecorded_attempts_are_discarded(data, make_ledger):
    ledger, stops = make_ledger(delta=1e-5, kind="open"), [True]

    def note(done, total):
        if done == 3 and stops:
            stops.clear()
            raise KeyboardInterrupt

    curve = TrainingCurve(data, note)
    with pytest.raises(KeyboardInterrupt):
        fit_with_curve(data, ledger, curve)
    assert curve.losses == () and len(ledger.pending()) == 1
    spent = ledger.spent()
    kept = fit_with_curve(data, ledger, curve)  # under the same reservation
    assert ledger.spent() == spent and len(curve.losses) == 5
    assert fit_with_curve(data, ledger, curve) == kept
    assert curve.losses == ()  # the model came from the ledger: nothing was fitted


def test_losses_are_discarded_if_another_process_recorded_first(data, make_ledger):
    ledger = make_ledger(delta=1e-5, kind="open")
    curve = TrainingCurve(
        data, lambda done, _: done == 3 and fit_with_curve(data, ledger, TrainingCurve(data))
    )
    fit_with_curve(data, ledger, curve)
    assert curve.losses == ()


def test_one_training_curve_serves_one_fit_at_a_time(data, make_ledger):
    ledger, other = (
        make_ledger(delta=1e-5, kind="open"),
        make_ledger(delta=1e-5, name="b", kind="open"),
    )
    refused = []

    def note(done, total):
        with pytest.raises(ValueError, match="one TrainingCurve per fit"):
            fit_with_curve(data, other, curve)
        refused.append(done)

    curve = TrainingCurve(data, note)
    fit_with_curve(data, ledger, curve)
    assert refused == [1, 2, 3, 4, 5] and other.entries() == () and len(curve.losses) == 5


def test_only_the_exact_training_curve_type_is_exempt(data):
    curve, model = TrainingCurve(data), Model()
    model.on_step = curve
    assert not exposes_weights(model)
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Leaky", (TrainingCurve,), {})
    for name in ("__call__", "note", "leak"):
        with pytest.raises(AttributeError):
            setattr(curve, name, print)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(curve)
    with pytest.raises(ValueError, match="callback must be callable"):
        TrainingCurve(data, 1)
    with pytest.raises(ValueError, match="records of numbers"):
        TrainingCurve(data._changed(X=data.X.astype(object)))

    class Lookalike:  # every attribute of the exempt type, and a claim to be of it
        __class__ = TrainingCurve

        def __getattr__(self, name):
            return getattr(curve, name)

        def __call__(self, model, step):
            print(model.coef_)

    model.on_step = Lookalike()
    assert isinstance(model.on_step, TrainingCurve) and exposes_weights(model)


def test_a_training_curve_outside_a_reservation_computes_nothing(data):
    curve = TrainingCurve(data)
    model = PrivateLogisticRegression(
        0.3, 1e-6, steps=5, sampling_rate=0.5, classes=[0, 1], size=50, on_step=curve
    )
    model.fit(data.X, data.y)
    assert curve.losses == () and curve._held == []


def test_step_counts_of_a_search_reveal_its_number_of_trials():
    progress = StepProgress(lambda done, total: None)
    inner = PrivateLogisticRegression(on_step=progress)
    assert not exposes_weights(inner)
    assert exposes_weights(PrivateSearch(inner, {"update": [0.1, 1.0]}))
    assert not exposes_weights(PrivateSearch(PrivateLogisticRegression(), {"update": [0.1]}))


def test_warnings_of_a_fit_wait_until_it_is_recorded(data, make_ledger):
    ledger = make_ledger()

    class Warns(Model):
        def fit(self, X, y):
            warnings.warn("about the weights", stacklevel=1)
            return super().fit(X, y)

    def keep(model):
        assert len(ledger.pending()) == 1
        return b"kept"

    with pytest.warns(UserWarning, match="about the weights"):
        assert Curator(data, ledger).fit_once(Warns(), keep, **ONCE) == b"kept"
    assert ledger.pending() == ()


def test_a_model_that_cannot_be_copied_is_rejected_before_the_charge(data, make_ledger):
    model, ledger = Model(), make_ledger()
    model.lock = threading.Lock()
    with pytest.raises(TypeError):
        Curator(data, ledger).fit_once(model, lambda model: b"", **ONCE)
    assert ledger.entries() == ()


def test_a_fit_of_a_run_uses_its_item(data, make_ledger):
    ledger = make_ledger()
    items = [Item("training", Pure(0.5)), Item("count", Pure(0.1), times=2)]
    run = ledger.begin_run(items, name="first", request="first", body=b"")
    holder = Curator(data, run)
    holder.require(items)
    assert holder.fit_once(Model(), lambda model: b"m", **ONCE) == b"m"
    assert ledger.spent().epsilon == 0.7
    assert [used for _, used in run.planned()] == [1, 0]
    with pytest.raises(BudgetError, match="planned once and was used as often"):
        holder.require(items)
    with pytest.raises(BudgetError, match="planned 2 times and was used 0 times"):
        holder.require([Item("count", Pure(0.1), times=3)])
    assert holder.unpaid(items) == [items[1]]


def test_a_failed_fit_once_is_charged_and_reveals_nothing(data, make_ledger):
    class Fails(Model):
        def fit(self, X, y):
            raise RuntimeError(f"row {X[0]}")

    ledger = make_ledger()
    for model in (Fails(), Model(), Model(stated_epsilon=0.7)):  # failing is an answer, too
        with pytest.raises(AnswerError) as caught:
            Curator(data, ledger).fit_once(model, lambda model: b"", **ONCE)
        assert "row" not in str(caught.value)
        assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert ledger.spent().epsilon == 0.5


def test_a_fit_once_beyond_the_budget_reads_no_record(data, make_ledger):
    ledger, model = make_ledger(), Model(epsilon=1.5)
    with pytest.raises(BudgetError):
        Curator(data, ledger).fit_once(model, lambda model: b"", **ONCE)
    assert model.rows is None and ledger.spent().epsilon == 0


def test_models_cannot_be_fitted_to_scores(scores, make_ledger):
    with pytest.raises(DataError, match="a data set"):
        Curator(scores, make_ledger()).fit(Model())


def test_replace_one_needs_a_fixed_number_of_rows(data, make_ledger):
    ledger = make_ledger(relation="replace-one")
    dropped = replace(data, may_drop=True)
    with pytest.raises(DataError, match="dropped"):
        Curator(dropped, ledger).fit(Model(relation="replace-one"))
    assert ledger.spent().epsilon == 0
    Curator(data, ledger).fit(Model(relation="replace-one"))


def test_gaussian_answers_are_charged_to_a_plan(scores, tmp_path):
    event = gaussian_event(Correct(), 4.0, "add-remove")
    ledger = open_ledger(
        tmp_path / "plan.ledger",
        Budget(2.0, 1e-5),
        kind="plan",
        plan=[Item("correct", event, 1)],
    )
    holder = Curator(scores, ledger)
    release = holder.answer_gaussian(Correct(), noise_multiplier=4.0)
    assert release.event == event == DiscreteGaussian(4.0, 1)
    assert release.micro_epsilon is None and release.epsilon is None
    low, high = release.intervals(1 - 1e-9)[0]
    assert low < Correct().evaluate(scores)[0] < high
    assert holder.answer_gaussian(Correct(), noise_multiplier=4.0) == release
    with pytest.raises(BudgetError, match="not planned"):
        holder.answer_gaussian(Correct(), noise_multiplier=3.0)


def test_gaussian_noise_has_its_distribution(scores, tmp_path):
    ledger = open_ledger(tmp_path / "open.ledger", Budget(500.0, 1e-5), kind="open")
    holder = Curator(scores, ledger)
    exact = int(Correct().evaluate(scores)[0])
    draws = np.array(
        [
            holder.answer_gaussian(Correct(), noise_multiplier=5.0, request=str(i)).units[0]
            for i in range(300)
        ]
    )
    statistic = ((draws - exact) ** 2).sum()
    assert 1e-6 < stats.chi2(300).cdf(statistic / 25) < 1 - 1e-6
    assert stats.chi2(300).sf(statistic / (25 / 2)) < 1e-6  # half the variance is refused
