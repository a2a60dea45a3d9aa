"""Published collections of labeled text: their forms and catalog entries."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.datasets.entries import CatalogEntry, DatasetRequest, empty_dataset
from benchmarks.datasets.sources import FromFolder, FromPip, in_folder, in_package
from veracal._types import Frozen
from veracal.data.dataset import Dataset
from veracal.data.rows import TEXT
from veracal.data.texts import Rating, TextForm, load_text

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


_POLARITY = "negative or positive"
_ENTAILMENT = "entailment or not"
_NLI = "entailment, neutral or contradiction"
_GENRES = "OANC and CC, by genre"
_HARD = (
    "Pairs that the hypothesis alone does not give away (Gururangan et al. 2018); tokenized."
)


@dataclass(frozen=True)
class CollectionFile:
    """One file of a collection: its name, its form, the published number of records."""

    path: str
    form: str
    size: int


def _form(
    parts: Mapping[str, CollectionFile], request: DatasetRequest
) -> tuple[CollectionFile, TextForm]:
    """One part of a collection, and the form that its variant is read by."""
    assert request.part is not None
    part = parts[request.part]
    form = f"{part.form}-neutral" if request.variant == "neutral" else part.form
    return part, TEXT_FORMS[form]


def _load(
    parts: Mapping[str, CollectionFile], entry: CatalogEntry, request: DatasetRequest
) -> Dataset:
    """Load one part of a collection."""
    part, form = _form(parts, request)
    return load_text(
        entry.find(request) / part.path,
        replace(form, size=part.size, name=entry.name),
        limits=request.limits,
        row_digests=request.row_digests,
        progress=request.progress,
    )


def _declare(
    parts: Mapping[str, CollectionFile], entry: CatalogEntry, request: DatasetRequest
) -> Dataset:
    """Declare the published facts of one part of a collection."""
    part, form = _form(parts, request)
    return empty_dataset(
        (len(form.text),),
        TEXT,
        form.classes,
        groups={str(column): values for column, values in form.groups.items()},
        units=form.unit is not None,
        size=part.size,
        may_drop=form.may_drop,
        name=entry.name,
    )


def _entry(
    name: str,
    title: str,
    shape: str,
    task: str,
    license: str,
    folder: str,
    parts: Mapping[str, CollectionFile],
    *,
    known: bool = True,
    note: str = "",
) -> CatalogEntry:
    """Entry of a collection in a folder; ``known`` says whether checksums are."""
    paths = tuple(part.path for part in parts.values())
    source = FromFolder(folder, in_folder(folder, *paths)) if known else None
    return CatalogEntry(
        name,
        title,
        "text",
        shape,
        task,
        license,
        (source or FromFolder(folder, needs=paths),),
        partial(_load, parts),
        partial(_declare, parts),
        parts=tuple(parts),
        note=note,
    )


def _sentiment_entry(domain: str, title: str, rows: int, file: str, unit: str) -> CatalogEntry:
    """Entry of one of the four domains that were rated for VADER."""
    member = in_package(f"hutto_ICWSM_2014/{file}_GroundTruth.txt")
    package = FromPip(
        "vaderSentiment",
        "3.3.2",
        2_466_783,
        (member,),
        sdist="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
        inner="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
    )
    parts = {"all": CollectionFile(member.path, "sentiment", rows)}
    return CatalogEntry(
        f"sentiment-{domain}",
        title,
        "text",
        f"{rows:,} × text × 2",
        f"{_POLARITY}, by the sign of the mean rating",
        "MIT, as its package states",
        (FromFolder("sentiment", (member,)), package),
        partial(_load, parts),
        partial(_declare, parts),
        parts=("all",),
        variants=("binary", "neutral"),
        note=f"The {unit} is the unit. A mean rating of 0 is left out, or a third class in the "
        "variant 'neutral'. Hutto and Gilbert 2014.",
    )


_GLUE = (
    _entry(
        "sst2",
        "film reviews (GLUE)",
        "67,349 + 872 × text × 2",
        _POLARITY,
        "research use",
        "glue/SST-2",
        {
            "train": CollectionFile("train.tsv", "sst2", 67_349),
            "dev": CollectionFile("dev.tsv", "sst2", 872),
        },
    ),
    _entry(
        "mrpc",
        "paraphrases (GLUE)",
        "3,668 + 408 + 1,725 × pair × 2",
        "paraphrase or not",
        "Microsoft Research license",
        "glue/MRPC",
        {
            "train": CollectionFile("train.tsv", "mrpc", 3_668),
            "dev": CollectionFile("dev.tsv", "mrpc", 408),
            "test": CollectionFile("msr_paraphrase_test.txt", "mrpc", 1_725),
        },
        note="The train file whose checksum is known has 3,667 of the 3,668 rows.",
    ),
    _entry(
        "rte",
        "entailment (GLUE)",
        "2,490 + 277 × pair × 2",
        _ENTAILMENT,
        "research use",
        "glue/RTE",
        {
            "train": CollectionFile("train.tsv", "rte", 2_490),
            "dev": CollectionFile("dev.tsv", "rte", 277),
        },
    ),
    _entry(
        "wnli",
        "pronouns (GLUE)",
        "635 + 71 × pair × 2",
        _ENTAILMENT,
        "research use",
        "glue/WNLI",
        {
            "train": CollectionFile("train.tsv", "wnli", 635),
            "dev": CollectionFile("dev.tsv", "wnli", 71),
        },
    ),
    _entry(
        "qnli",
        "answers to questions (GLUE)",
        "5,463 × pair × 2",
        _ENTAILMENT,
        "CC BY-SA 4.0",
        "glue/QNLI",
        {"dev": CollectionFile("dev.tsv", "qnli", 5_463)},
    ),
    _entry(
        "qnli-train",
        "QNLI's training file",
        "104,743 × pair × 2",
        _ENTAILMENT,
        "CC BY-SA 4.0",
        "glue/QNLI",
        {"train": CollectionFile("train.tsv", "qnli", 104_743)},
        known=False,
    ),
    _entry(
        "qqp",
        "pairs of questions (GLUE)",
        "363,846 + 40,430 × pair × 2",
        "duplicate or not",
        "Quora's terms",
        "glue/QQP",
        {
            "train": CollectionFile("train.tsv", "qqp", 363_846),
            "dev": CollectionFile("dev.tsv", "qqp", 40_430),
        },
        known=False,
    ),
    _entry(
        "mnli-train",
        "MultiNLI's training file",
        "392,702 × pair × 3",
        _NLI,
        _GENRES,
        "glue/MNLI",
        {"train": CollectionFile("train.tsv", "mnli", 392_702)},
        known=False,
    ),
)

_SHIFT = (
    _entry(
        "mnli",
        "MultiNLI, matched",
        "9,815 × pair × 3",
        _NLI,
        _GENRES,
        "nli_shift",
        {"dev": CollectionFile("mnli_dev.jsonl", "mnli-jsonl", 9_815)},
    ),
    _entry(
        "mnli-hard-matched",
        "MultiNLI, hard matched",
        "4,573 × pair × 3",
        _NLI,
        _GENRES,
        "nli_shift",
        {"dev": CollectionFile("mnli_dev_matched_hard.tsv", "mnli-hard", 4_573)},
        note=_HARD,
    ),
    _entry(
        "mnli-hard-mismatched",
        "MultiNLI, hard mismatched",
        "4,530 × pair × 3",
        _NLI,
        _GENRES,
        "nli_shift",
        {"dev": CollectionFile("mnli_dev_mismatched_hard.tsv", "mnli-hard", 4_530)},
        note=_HARD,
    ),
    _entry(
        "snli",
        "picture captions",
        "9,842 + 9,824 × pair × 3",
        _NLI,
        "CC BY-SA 4.0",
        "nli_shift",
        {
            "dev": CollectionFile("snli_dev.jsonl", "snli-jsonl", 9_842),
            "test": CollectionFile("snli_test_becel.tsv", "snli-becel", 9_824),
        },
    ),
    _entry(
        "scitail",
        "science questions",
        "2,126 × pair × 2",
        _ENTAILMENT,
        "Apache-2.0",
        "nli_shift",
        {"test": CollectionFile("scitail_test.jsonl", "scitail-jsonl", 2_126)},
    ),
    _entry(
        "rte-nli",
        "RTE, all labeled pairs",
        "2,767 × pair × 2",
        _ENTAILMENT,
        "research use",
        "nli_shift",
        {"test": CollectionFile("rte_test.jsonl", "rte-jsonl", 2_767)},
        note="For evaluation out of domain: GLUE's train and dev pairs in one file.",
    ),
    _entry(
        "hans-regenerated",
        "HANS, NOT the official file",
        "30,000 × pair × 2",
        _ENTAILMENT,
        "MIT",
        "hans_regenerated",
        {"test": CollectionFile("hans_regenerated_seed0.tsv", "hans", 30_000)},
        note="Regenerated with the published generator and seed 0: NOT the official file. Say "
        "so wherever it is used.",
    ),
)

_SENTIMENT = (
    _sentiment_entry("movies", "rated film reviews", 10_605, "movieReviewSnippets", "sentence"),
    _sentiment_entry("tweets", "rated tweets", 4_200, "tweets", "tweet"),
    _sentiment_entry(
        "amazon", "rated product reviews", 3_708, "amazonReviewSnippets", "review"
    ),
    _sentiment_entry(
        "nyt", "rated newspaper editorials", 5_190, "nytEditorialSnippets", "article"
    ),
)

ENTRIES = (*_GLUE, *_SHIFT, *_SENTIMENT)
