"""Options, checks and messages of commands that train."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output as _show

if TYPE_CHECKING:
    from veracal.workflow import Config, OnNotice, OnProgress


Target = Annotated[
    str | None, typer.Option(help="Column to predict; the schema must say the same.")
]
Epsilon = Annotated[
    float | None, typer.Option(help="How much may be told about one person, in all.")
]
Delta = Annotated[
    float | None, typer.Option(help="By default 1 over 10 times the declared size.")
]
SchemaFile = Annotated[
    Path | None, typer.Option(help="TOML file with what is public about a file.")
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        help="Ledger that pays; by default the data set's, see 'veracal ledger list'."
    ),
]
Test = Annotated[
    float | None, typer.Option(help="Share of the records kept for measuring: 0.2.")
]
Seed = Annotated[
    str | None, typer.Option(help="Public key that deals records to training and test.")
]
ModelKind = Annotated[
    str | None,
    typer.Option(
        help="logistic, objective or output; networks: mlp, cnn (pictures), features (of "
        "pictures or texts, frozen) or text. By default logistic.",
        autocompletion=lambda: list(MODELS),
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        help="Map: auto, temperature, two-temperatures or none.",
        autocompletion=lambda: list(METHODS),
    ),
]
Norm = Annotated[
    float | None,
    typer.Option(
        help="Of objective and output: longer rows are scaled to it; by default the schema's."
    ),
]
Group = Annotated[
    str | None, typer.Option(help="Group of the schema to tell figures apart by.")
]
Bins = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="Bins of the calibration error: 10.")
]
Version = Annotated[
    str | None, typer.Option(help="Public mark of the records; change it when they change.")
]
AtMost = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Rows kept of one unit, where a named set has units; a schema says it itself.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option(help="TOML file with all of this; options come first.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

# As in veracal.workflow.config, whose import takes longer than one waits for a completion.
PERTURBED = ("objective", "output")
MODELS = ("logistic", *PERTURBED, "mlp", "cnn", "features", "text")
METHODS = ("auto", "temperature", "two-temperatures", "none")
# Which field of the config an option sets.
_FIELDS: Mapping[str, tuple[str, str]] = {
    "--schema": ("data", "schema"),
    "--test": ("data", "test"),
    "--seed": ("data", "seed"),
    "--version": ("data", "version"),
    "--at-most": ("data", "at_most"),
    "--epsilon": ("privacy", "epsilon"),
    "--delta": ("privacy", "delta"),
    "--model": ("model", "kind"),
    "--norm": ("model", "norm"),
    "--method": ("recalibration", "method"),
    "--group": ("measurement", "group"),
    "--bins": ("measurement", "bins"),
    "--later": ("measurement", "later"),
}


def configured(data: str | None, typed: Mapping[str, Any], config: Path | None) -> "Config":
    """Every choice: those of the file, and over them those that were typed."""
    from dataclasses import replace

    from veracal.workflow import Config, DataConfig, PrivacyConfig

    epsilon = typed["--epsilon"]
    if epsilon is not None:
        _meant(PrivacyConfig, "--epsilon", epsilon=epsilon)
    if config is None:
        if data is None:
            raise typer.BadParameter("name a file or a built-in set.", param_hint="DATA")
        if epsilon is None:
            raise typer.BadParameter(
                "say how much may be told about one person, as in --epsilon 3 (smaller is more "
                "private).",
                param_hint="--epsilon",
            )
        chosen = Config(DataConfig(data), PrivacyConfig(epsilon), name=Path(data).stem)
    else:
        chosen = Config.load(config, epsilon=epsilon)
        if data is not None:
            chosen = replace(chosen, data=replace(chosen.data, source=data))
    return overruled(chosen, typed)


def overruled(chosen: "Config", typed: Mapping[str, Any]) -> "Config":
    """The same choices, but for those that were typed."""
    from dataclasses import replace

    for option, value in typed.items():
        if value is None:
            continue
        section, field = _FIELDS[option]
        part = _meant(partial(replace, getattr(chosen, section)), option, **{field: value})
        chosen = replace(chosen, **{section: part})
    return chosen


def _meant(make: Callable[..., Any], option: str, **settings: Any) -> Any:
    """Make something of what was typed, or say which option cannot be meant."""
    try:
        return make(**settings)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def check_data(chosen: "Config", target: str | None, kinds: Sequence[str] = ()) -> None:
    """Refuse a file without a schema, a schema for a built-in set, and another target.

    ``kinds`` are those of the models to be trained; by default the config's.
    """
    from veracal.cli._artifacts import is_name
    from veracal.data import SCHEMAS, Schema, entry, readable

    source, path = chosen.data.source, Path(chosen.data.source)
    if is_name(source):
        if chosen.data.schema is not None:
            raise typer.BadParameter(f"{source!r} brings its own.", param_hint="--schema")
        entry(source)  # says which names are like it
        declared = SCHEMAS.get(source)
    else:
        if not path.exists():
            readable(path)  # says that nothing is there
        if chosen.data.schema is None:
            _explain(path, target)
            raise typer.Exit(2)
        declared = Schema.load(chosen.data.schema)
    if target is not None and declared is not None and declared.target != target:
        raise typer.BadParameter(
            f"the schema's target is {declared.target!r}, not {target!r}. Say the same in "
            "both, or leave --target out.",
            param_hint="--target",
        )
    for kind in kinds or (chosen.model.kind,):
        _check_norm(chosen, kind, None if declared is None else declared.norm)


def _check_norm(chosen: "Config", kind: str, norm: float | None) -> None:
    """Refuse a model that needs a bound on rows where none is declared."""
    from veracal.errors import DataError

    if kind in PERTURBED and chosen.model.norm is None and norm is None:
        raise DataError(
            chosen.data.source,
            f"a declared bound on the norm of a row, which {kind} perturbation needs",
            "none",
            "Write norm = … at the top of the schema, or say --norm …: longer rows are scaled "
            "down to it. The model 'logistic' needs none.",
        )


def _explain(path: Path, target: str | None) -> None:
    """Say what must be declared about a file, why, and by which command."""
    beside = path.with_suffix(".toml")
    _show.status(
        f"error: {path} needs a schema: the bounds of its numbers, the values of its "
        "categories, its classes and about how many records there are, all by public "
        "knowledge, because whatever is read from the records tells about them. Draft one, "
        "put public knowledge in place of what it read, write size = … at its top, delete its "
        "line 'draft = true', and run this again with --schema:"
    )
    name, toml = shlex.quote(str(path)), shlex.quote(str(beside))
    column = "COLUMN" if target is None else shlex.quote(target)
    if beside.exists():
        _show.status(f"  ({beside} is there; if that is it, add --schema {toml})")
        return
    _show.status(f"  veracal schema draft {name} --target {column} --out {toml}")


@contextmanager
def running(
    chosen: "Config", place: Path, ledger: Path | None, *, force: bool
) -> "Iterator[tuple[Path, OnProgress, OnNotice]]":
    """Guard a run: what cannot be meant is a matter of usage, and what stops it is told.

    Yields
    ------
    tuple of path and two callables
        The ledger, where progress is told, and what the data holder is told of the records.
    """
    from veracal.accounting import rounded_up
    from veracal.cli._output import is_there
    from veracal.cli._run_output import step_bars
    from veracal.errors import DataError, VeracalError
    from veracal.ledger import Ledger
    from veracal.workflow import ledger_path

    book = ledger_path(chosen.data.source, ledger, outside=place)
    if is_there(place) and not force:
        raise DataError(
            str(place),
            "a new folder",
            "one that exists",
            f"Add --force to put the new one in its place ({book} stays, and what it has "
            "paid for is not paid again), or name another with --out.",
        )
    fresh = not is_there(book)
    try:
        with step_bars() as (tell, notify):
            yield book, tell, notify
    except KeyboardInterrupt:
        _show.status(
            "Stopped; nothing half-written is left. The same command goes on from what is in "
            f"the ledger, {book}, if there is one: nothing is paid twice."
        )
        raise typer.Exit(1) from None
    except DataError as error:
        if not is_there(book):
            raise
        raise DataError(
            error.where,
            error.expected,
            error.found,
            f"{error.remedy} What was paid for is kept in {book}: the same command goes on "
            "from there, at no further cost.",
        ) from error
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if fresh:
        caps = Ledger(book).budget
        _show.status(
            f"Opened the ledger of {chosen.data.source} with caps epsilon "
            f"{rounded_up(caps.epsilon, 6)} and delta {rounded_up(caps.delta, 3)}: {book}. "
            "Every further run on these records is charged to it, too, whatever its --out; to "
            "go beyond the caps takes 'veracal ledger extend'."
        )
