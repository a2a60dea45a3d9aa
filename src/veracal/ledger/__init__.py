"""The privacy ledger: one SQLite file per data set, charged before a record is read."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.ledger.chain import (
        Caps,
        Entry,
        EpsilonDelta,
        Extension,
        Opening,
        PartitionBalance,
        canonical,
        digest,
    )
    from veracal.ledger.charging import LedgerRun
    from veracal.ledger.ledger import Ledger, check_ledger, open_ledger
    from veracal.ledger.locations import (
        default_folder,
        default_ledger_path,
        display_name,
        list_default_ledgers,
        open_ledger_for_data,
        read_data_path,
        resolve_ledger,
        restore_data_path,
    )
    from veracal.ledger.partitions import (
        AssignmentNotice,
        PartitionRule,
        PartitionStore,
        split_and_assign,
    )
    from veracal.ledger.policies import (
        Cost,
        EpsilonSums,
        Item,
        Renyi,
        best_order,
        decimal_fraction,
        merge_items,
        read_plan,
        unpaid_items,
    )
    from veracal.ledger.verification import ledger_statement, ledger_total

__all__ = [
    "AssignmentNotice",
    "Caps",
    "Cost",
    "Entry",
    "EpsilonDelta",
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
    "best_order",
    "canonical",
    "check_ledger",
    "decimal_fraction",
    "default_folder",
    "default_ledger_path",
    "digest",
    "display_name",
    "ledger_statement",
    "ledger_total",
    "list_default_ledgers",
    "merge_items",
    "open_ledger",
    "open_ledger_for_data",
    "read_data_path",
    "read_plan",
    "resolve_ledger",
    "restore_data_path",
    "split_and_assign",
    "unpaid_items",
]

__getattr__, __dir__ = attach(__name__)
