"""Forms of published collections of labelled text."""

from collections.abc import Mapping
from dataclasses import replace

from veracal._types import Frozen
from veracal.data.readers.text import Rating, TextForm

NLI = ("entailment", "neutral", "contradiction")
ENTAILMENT = ("entailment", "not_entailment")
_SENTENCES = ("sentence1", "sentence2")
_PAIR = ("premise", "hypothesis")
_BINARY = {"0": "not_entailment", "1": "entailment"}

_sst2 = TextForm(
    ("sentence",), "label", ("negative", "positive"), {"0": "negative", "1": "positive"}
)
_mrpc = TextForm(
    ("#1 String", "#2 String"),
    "Quality",
    ("different", "paraphrase"),
    {"0": "different", "1": "paraphrase"},
)
_qqp = TextForm(
    ("question1", "question2"),
    "is_duplicate",
    ("different", "duplicate"),
    {"0": "different", "1": "duplicate"},
)
_rte = TextForm(_SENTENCES, "label", ENTAILMENT)
_mnli = TextForm(_SENTENCES, "gold_label", NLI, drop=("-",))
_nli_jsonl = TextForm(_PAIR, "label", NLI, lines="jsonl")
# Mean of 15 to 98 ratings from -4 to 4 in the column before the text. A number in front of
# "_" is the review or the article that a sentence was cut from.
_sentiment = TextForm(
    (2,),
    1,
    ("negative", "positive"),
    rating=Rating(cut=0.0),
    unit=0,
    unit_until="_",
    header=False,
    width=3,
)

TEXT_FORMS: Mapping[str, TextForm] = Frozen(
    {
        # GLUE (Wang et al. 2019), as its download script lays the files out.
        "sst2": _sst2,
        "mrpc": _mrpc,  # train.tsv, dev.tsv and msr_paraphrase_{train,test}.txt
        "qqp": _qqp,
        "rte": _rte,
        "wnli": replace(_rte, aliases=_BINARY),
        "qnli": replace(_rte, text=("question", "sentence")),
        "mnli": _mnli,  # 12 columns in train.tsv, 16 in dev_*.tsv
        # As MultiNLI and SNLI publish themselves: "-" where annotators did not agree.
        "mnli-official-jsonl": replace(_mnli, lines="jsonl"),
        "snli-official-jsonl": replace(_mnli, lines="jsonl"),
        # Premise, hypothesis, label, without the records that have no gold label.
        "mnli-jsonl": _nli_jsonl,
        "snli-jsonl": _nli_jsonl,
        "rte-jsonl": replace(_nli_jsonl, classes=ENTAILMENT),
        "scitail-jsonl": replace(_nli_jsonl, classes=ENTAILMENT),
        # SciTail's own tsv_format folder.
        "scitail": TextForm(
            (0, 1),
            2,
            ENTAILMENT,
            {"entails": "entailment", "neutral": "not_entailment"},
            header=False,
            width=3,
        ),
        # BECEL's copy of SNLI. Its test set has 3,368 rows of 0, 3,219 of 1 and 3,237 of 2,
        # which are SNLI's published counts of entailment, neutral and contradiction.
        "snli-becel": TextForm(_PAIR, "label", NLI, {"0": NLI[0], "1": NLI[1], "2": NLI[2]}),
        # The "hard" subsets of MNLI (Gururangan et al. 2018), tokenized: label, then the pair.
        "mnli-hard": TextForm((1, 2), 0, NLI, header=False, width=3),
        # HANS (McCoy et al. 2019), its own 12 columns or the five that matter.
        "hans": TextForm(
            _SENTENCES,
            "gold_label",
            ENTAILMENT,
            {"non-entailment": "not_entailment"},
            groups={"heuristic": ("lexical_overlap", "subsequence", "constituent")},
        ),
        # The *_GroundTruth.txt files of VADER (Hutto and Gilbert 2014): movies, tweets,
        # Amazon, New York Times. The class is the sign of the mean rating; a mean of 0 is
        # neither, so its row is left out, or neutral.
        "sentiment": _sentiment,
        "sentiment-neutral": replace(
            _sentiment,
            classes=("negative", "neutral", "positive"),
            rating=Rating(cut=0.0, tie="neutral"),
        ),
    }
)
