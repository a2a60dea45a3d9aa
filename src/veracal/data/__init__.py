"""Records, their schemas and splits, and the scores of classifiers on them."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.data.arrays import SCHEMA_FILE, check_group_names, read_npz, save_matrix
    from veracal.data.builtin import CATALOG, SCHEMAS, CatalogEntry, entry
    from veracal.data.dataset import (
        Dataset,
        Group,
        UnitRows,
        corrupt_labels,
        cross,
        limit_contributions,
    )
    from veracal.data.encoding import EncodedRows
    from veracal.data.files import (
        DEFAULT_LIMITS,
        Limits,
        atomic_file,
        cache_folder,
        cache_secret,
        check_output_path,
        check_readable,
        construct_from_settings,
        expect_table,
        new_file,
        open_file,
        parse_json,
        private_folder,
        translate_os_errors,
        write_new_text,
    )
    from veracal.data.groups import ByGroup, Estimate, Metric, by_group, estimate
    from veracal.data.images import ImageForm
    from veracal.data.labels import (
        TEXT,
        Label,
        check_classes,
        check_features,
        encode_labels,
        read_only,
        reject_masked,
        restore_state,
        row_numbers,
    )
    from veracal.data.loading import RecordCount, count_records, declare, load, scan, scan_rows
    from veracal.data.row_digests import digests_of_records, iterate_digests
    from veracal.data.rows import (
        MappedRows,
        Score,
        equivalent_positions,
        score_at_positions,
        score_independently,
    )
    from veracal.data.schema import (
        Category,
        Column,
        FillValue,
        Grouping,
        Ignore,
        Number,
        Schema,
        Slot,
        Target,
        Text,
        UnitColumn,
        Vector,
    )
    from veracal.data.schema_draft import Draft, draft
    from veracal.data.score_files import (
        ABSTAINED,
        CsvPredictions,
        ExtraColumns,
        JsonPredictions,
        PredictionWriter,
        check_score_columns,
        check_score_suffix,
        load_scores,
        prediction_writer,
        save_scores,
        scan_scores,
    )
    from veracal.data.scores import Kind, Scores
    from veracal.data.scoring import compute_logits, score, scoring_method
    from veracal.data.splitting import (
        Relation,
        Split,
        assign_partitions,
        check_fractions,
        check_identity,
        draws_by_digest,
        draws_by_id,
        even_draws,
        key_fingerprints,
        record_digests,
        split,
        split_by_assignment,
    )
    from veracal.data.texts import Rating, TextForm

__all__ = [
    "ABSTAINED",
    "CATALOG",
    "DEFAULT_LIMITS",
    "SCHEMAS",
    "SCHEMA_FILE",
    "TEXT",
    "ByGroup",
    "CatalogEntry",
    "Category",
    "Column",
    "CsvPredictions",
    "Dataset",
    "Draft",
    "EncodedRows",
    "Estimate",
    "ExtraColumns",
    "FillValue",
    "Group",
    "Grouping",
    "Ignore",
    "ImageForm",
    "JsonPredictions",
    "Kind",
    "Label",
    "Limits",
    "MappedRows",
    "Metric",
    "Number",
    "PredictionWriter",
    "Rating",
    "RecordCount",
    "Relation",
    "Schema",
    "Score",
    "Scores",
    "Slot",
    "Split",
    "Target",
    "Text",
    "TextForm",
    "UnitColumn",
    "UnitRows",
    "Vector",
    "assign_partitions",
    "atomic_file",
    "by_group",
    "cache_folder",
    "cache_secret",
    "check_classes",
    "check_features",
    "check_fractions",
    "check_group_names",
    "check_identity",
    "check_output_path",
    "check_readable",
    "check_score_columns",
    "check_score_suffix",
    "compute_logits",
    "construct_from_settings",
    "corrupt_labels",
    "count_records",
    "cross",
    "declare",
    "digests_of_records",
    "draft",
    "draws_by_digest",
    "draws_by_id",
    "encode_labels",
    "entry",
    "equivalent_positions",
    "estimate",
    "even_draws",
    "expect_table",
    "iterate_digests",
    "key_fingerprints",
    "limit_contributions",
    "load",
    "load_scores",
    "new_file",
    "open_file",
    "parse_json",
    "prediction_writer",
    "private_folder",
    "read_npz",
    "read_only",
    "record_digests",
    "reject_masked",
    "restore_state",
    "row_numbers",
    "save_matrix",
    "save_scores",
    "scan",
    "scan_rows",
    "scan_scores",
    "score",
    "score_at_positions",
    "score_independently",
    "scoring_method",
    "split",
    "split_by_assignment",
    "translate_os_errors",
    "write_new_text",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "arrays": "SCHEMA_FILE check_group_names read_npz save_matrix",
        "builtin": "CATALOG SCHEMAS CatalogEntry entry",
        "dataset": "Dataset Group UnitRows corrupt_labels cross limit_contributions",
        "encoding": "EncodedRows",
        "files": (
            "DEFAULT_LIMITS Limits atomic_file cache_folder cache_secret check_output_path "
            "check_readable construct_from_settings expect_table new_file open_file "
            "parse_json private_folder translate_os_errors write_new_text"
        ),
        "groups": "ByGroup Estimate Metric by_group estimate",
        "images": "ImageForm",
        "labels": (
            "TEXT Label check_classes check_features encode_labels read_only reject_masked "
            "restore_state row_numbers"
        ),
        "loading": "RecordCount count_records declare load scan scan_rows",
        "row_digests": "digests_of_records iterate_digests",
        "rows": "MappedRows Score equivalent_positions score_at_positions score_independently",
        "schema": (
            "Category Column FillValue Grouping Ignore Number Schema Slot Target Text "
            "UnitColumn Vector"
        ),
        "schema_draft": "Draft draft",
        "score_files": (
            "ABSTAINED CsvPredictions ExtraColumns JsonPredictions PredictionWriter "
            "check_score_columns load_scores prediction_writer save_scores scan_scores "
            "check_score_suffix"
        ),
        "scores": "Kind Scores",
        "scoring": "compute_logits score scoring_method",
        "splitting": (
            "Relation Split assign_partitions check_fractions check_identity "
            "draws_by_digest draws_by_id even_draws key_fingerprints record_digests split "
            "split_by_assignment"
        ),
        "texts": "Rating TextForm",
    },
)
