"""The privacy ledger: one SQLite file per data set, charged before a record is read."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.ledger.chain import Entry, canonical, digest
    from veracal.ledger.ledger import (
        Amount,
        Ledger,
        PartitionBalance,
        check_ledger,
        open_ledger,
    )
    from veracal.ledger.locations import (
        default_folder,
        default_ledger_path,
        default_ledgers,
        display_name,
        noted_data,
        open_for_data,
        resolve_ledger,
        restore_data_note,
    )
    from veracal.ledger.partitions import (
        AssignmentNotice,
        PartitionRule,
        PartitionStore,
        split_and_assign,
    )
    from veracal.ledger.plan import Cost, Item, as_written, merged, read_plan, share, unpaid_of
    from veracal.ledger.policies import EpsilonSums, Extension, Opening, Renyi, best_order
    from veracal.ledger.runs import LedgerRun
    from veracal.ledger.statements import ledger_statement, ledger_total

__all__ = [
    "Amount",
    "AssignmentNotice",
    "Cost",
    "Entry",
    "EpsilonSums",
    "Extension",
    "Item",
    "Ledger",
    "LedgerRun",
    "Opening",
    "PartitionBalance",
    "PartitionRule",
    "PartitionStore",
    "Renyi",
    "as_written",
    "best_order",
    "canonical",
    "check_ledger",
    "default_folder",
    "default_ledger_path",
    "default_ledgers",
    "digest",
    "display_name",
    "ledger_statement",
    "ledger_total",
    "merged",
    "noted_data",
    "open_for_data",
    "open_ledger",
    "read_plan",
    "resolve_ledger",
    "restore_data_note",
    "share",
    "split_and_assign",
    "unpaid_of",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "ledger": (
            "Amount",
            "Ledger",
            "PartitionBalance",
            "check_ledger",
            "open_ledger",
        ),
        "chain": (
            "Entry",
            "canonical",
            "digest",
        ),
        "locations": (
            "default_folder",
            "default_ledger_path",
            "default_ledgers",
            "display_name",
            "noted_data",
            "open_for_data",
            "resolve_ledger",
            "restore_data_note",
        ),
        "partitions": (
            "AssignmentNotice",
            "PartitionRule",
            "PartitionStore",
            "split_and_assign",
        ),
        "plan": (
            "Cost",
            "Item",
            "as_written",
            "merged",
            "read_plan",
            "share",
            "unpaid_of",
        ),
        "policies": (
            "Extension",
            "Opening",
            "Renyi",
            "EpsilonSums",
            "best_order",
        ),
        "runs": ("LedgerRun",),
        "statements": (
            "ledger_statement",
            "ledger_total",
        ),
    },
)
