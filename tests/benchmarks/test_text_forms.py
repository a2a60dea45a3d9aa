"""Every published collection of text loads, with its published number of rows."""

import json
from collections import Counter

import pytest

from benchmarks.datasets.text import ENTAILMENT, NLI, TEXT_FORMS
from veracal.data.texts import load_text
from veracal.errors import DataError

PARSES = [f"sentence{i}{kind}_parse" for kind in ("_binary", "") for i in (1, 2)]
MNLI = ["index", "promptID", "pairID", "genre", *PARSES, "sentence1", "sentence2", "label1"]


def table(path, header, *rows):
    """Write a tab-separated file; a row is a dict, or a list of fields."""
    lines = [] if header is None else ["\t".join(header)]
    for row in rows:
        fields = [row.get(name, "x") for name in header] if isinstance(row, dict) else row
        lines.append("\t".join(fields))
    path.write_text("\n".join(lines) + "\n")
    return path


def pair(label, column="label", **more):
    return {"sentence1": 'a "b', "sentence2": "c", column: label, **more}


FILES = {
    "sst2": (["sentence", "label"], [["good ", "1"], ["bad", "0"]]),
    "mrpc": (
        ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        [["1", "7", "8", 'a "', "b"], ["0", "9", "10", "c", "d"]],
    ),
    "qqp": (
        ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
        [["1", "2", "3", "a?", "b?", "1"], ["4", "5", "6", "c?", "d?", "0"]],
    ),
    "rte": (
        ["index", "sentence1", "sentence2", "label"],
        [pair("entailment"), pair("not_entailment")],
    ),
    "wnli": (["index", "sentence1", "sentence2", "label"], [pair("1"), pair("0")]),
    "qnli": (
        ["index", "question", "sentence", "label"],
        [["0", "q?", "s", "entailment"], ["1", "q?", "s", "not_entailment"]],
    ),
    "mnli": (
        [*MNLI, "gold_label"],
        [pair(label, "gold_label") for label in (*NLI, "-")],
    ),
    "scitail": (None, [["p", "h", "entails"], ["p", "h", "neutral"]]),
    "snli-becel": (["premise", "hypothesis", "label"], [["p", "h", code] for code in "012"]),
    "mnli-hard": (None, [[label, "p", "h"] for label in NLI]),
    "hans": (
        ["gold_label", "sentence1", "sentence2", "heuristic", "subcase"],
        [
            pair("entailment", "gold_label", heuristic="subsequence"),
            pair("non-entailment", "gold_label", heuristic="constituent"),
        ],
    ),
    "sentiment": (None, [["1_1", "2.5", "a"], ["1_2", "0.0", "b"], ["2", "-1", "c"]]),
    "sentiment-neutral": (None, [["1_1", "2.5", "a"], ["1_2", "0.0", "b"], ["2", "-1", "c"]]),
}
LABELS = {
    "sst2": ["positive", "negative"],
    "mrpc": ["paraphrase", "different"],
    "qqp": ["duplicate", "different"],
    "mnli": list(NLI),
    "snli-becel": list(NLI),
    "mnli-hard": list(NLI),
    "sentiment": ["positive", "negative"],
    "sentiment-neutral": ["positive", "neutral", "negative"],
}


@pytest.mark.parametrize("name", FILES)
def test_a_small_file_of_each_form_loads(tmp_path, name):
    header, rows = FILES[name]

    data = load_text(table(tmp_path / "a.tsv", header, *rows), TEXT_FORMS[name])

    assert data.labels.tolist() == LABELS.get(name, list(ENTAILMENT))


def test_the_second_layout_of_mnli_loads(tmp_path):
    header = [*MNLI, "label2", "label3", "label4", "label5", "gold_label"]
    rows = [pair(label, "gold_label") for label in ("neutral", "entailment")]
    path = table(tmp_path / "dev.tsv", header, *rows)

    data = load_text(path, TEXT_FORMS["mnli"])

    assert data.X.tolist() == [['a "b', "c"]] * 2
    assert data.labels.tolist() == ["neutral", "entailment"]


def test_the_official_layout_of_hans_loads(tmp_path):
    header = ["gold_label", *PARSES, "sentence1", "sentence2", "pairID", "heuristic", "subcase"]
    rows = [
        pair("non-entailment", "gold_label", heuristic="lexical_overlap"),
        pair("entailment", "gold_label", heuristic="constituent"),
    ]
    path = table(tmp_path / "a.txt", [*header, "template"], *rows)

    data = load_text(path, TEXT_FORMS["hans"])

    assert data.groups["heuristic"].codes.tolist() == [0, 2]


def test_units_of_sentiment_are_whole_reviews(tmp_path):
    data = load_text(
        table(tmp_path / "a", *_flat("sentiment-neutral")), TEXT_FORMS["sentiment"]
    )

    assert data.units.tolist() == ["1", "2"]


def _flat(name):
    header, rows = FILES[name]
    return header, *rows


@pytest.mark.parametrize("name", ["mnli-official-jsonl", "snli-official-jsonl"])
def test_official_json_lines_load(tmp_path, name):
    rows = [
        {"annotator_labels": ["neutral"], "genre": "oup", "gold_label": label, "pairID": "8e"}
        | {"sentence1": "a", "sentence2": "b"}
        for label in ("neutral", "-", "contradiction")
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))

    data = load_text(tmp_path / "a.jsonl", TEXT_FORMS[name])

    assert data.labels.tolist() == ["neutral", "contradiction"]


@pytest.mark.parametrize("name", ["mnli-jsonl", "snli-jsonl", "rte-jsonl", "scitail-jsonl"])
def test_plain_json_lines_load_and_need_a_label(tmp_path, name):
    row = {"premise": "a", "hypothesis": "b", "label": "entailment"}
    labels = list(TEXT_FORMS[name].classes[:2])
    lines = [json.dumps(row | {"label": label}) for label in labels]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.jsonl").write_text(json.dumps(row | {"label": "-"}))

    assert load_text(tmp_path / "a.jsonl", TEXT_FORMS[name]).labels.tolist() == labels
    with pytest.raises(DataError, match="found '-'"):
        load_text(tmp_path / "b.jsonl", TEXT_FORMS[name])


def test_every_form_is_tested_here():
    json_lines = {name for name, form in TEXT_FORMS.items() if form.lines == "jsonl"}

    assert set(FILES) | json_lines == set(TEXT_FORMS)


# ------------------------------------------------------------------ real files

REAL = {
    "glue/SST-2/train.tsv": ("sst2", 67_349),
    "glue/SST-2/dev.tsv": ("sst2", 872),
    "glue/MRPC/train.tsv": ("mrpc", 3_667),  # the copy at hand lacks one row of 3,668
    "glue/MRPC/dev.tsv": ("mrpc", 408),
    "glue/MRPC/msr_paraphrase_test.txt": ("mrpc", 1_725),
    "glue/RTE/train.tsv": ("rte", 2_490),
    "glue/RTE/dev.tsv": ("rte", 277),
    "glue/WNLI/train.tsv": ("wnli", 635),
    "glue/WNLI/dev.tsv": ("wnli", 71),
    "glue/QNLI/dev.tsv": ("qnli", 5_463),
    "nli_shift/mnli_dev.jsonl": ("mnli-jsonl", 9_815),
    "nli_shift/mnli_dev_matched_hard.tsv": ("mnli-hard", 4_573),
    "nli_shift/mnli_dev_mismatched_hard.tsv": ("mnli-hard", 4_530),
    "nli_shift/snli_dev.jsonl": ("snli-jsonl", 9_842),
    "nli_shift/snli_test_becel.tsv": ("snli-becel", 9_824),
    "nli_shift/scitail_test.jsonl": ("scitail-jsonl", 2_126),
    "nli_shift/rte_test.jsonl": ("rte-jsonl", 2_767),
    "hans_regenerated/hans_regenerated_seed0.tsv": ("hans", 30_000),
}


@pytest.mark.parametrize("file", REAL)
def test_real_files_have_their_published_rows(data_folder, file):
    form, rows = REAL[file]

    data = load_text(data_folder(file), TEXT_FORMS[form])

    assert len(data) == rows
    assert set(data.labels.tolist()) == set(data.classes)


@pytest.mark.parametrize("task", ["SST-2", "MRPC", "RTE", "WNLI", "QNLI"])
def test_real_test_files_of_glue_have_no_labels(data_folder, task):
    form = TEXT_FORMS[task.lower().replace("-", "")]

    with pytest.raises(DataError, match="GLUE's test files"):
        load_text(data_folder(f"glue/{task}/test.tsv"), form)


def test_becel_codes_mean_what_the_form_says(data_folder):
    """SNLI's published test set: 3,368 entailment, 3,219 neutral, 3,237 contradiction."""
    data = load_text(data_folder("nli_shift/snli_test_becel.tsv"), TEXT_FORMS["snli-becel"])

    assert Counter(data.labels.tolist()) == dict(zip(NLI, (3_368, 3_219, 3_237), strict=True))


def test_hans_has_ten_thousand_pairs_for_each_heuristic(data_folder):
    path = data_folder("hans_regenerated/hans_regenerated_seed0.tsv")

    groups = load_text(path, TEXT_FORMS["hans"]).groups

    assert Counter(groups["heuristic"].codes.tolist()) == dict.fromkeys(range(3), 10_000)
