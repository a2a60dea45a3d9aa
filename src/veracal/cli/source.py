"""Commands of an institution that answers queries about its records from afar."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _predictions

if TYPE_CHECKING:
    from veracal.federation import Declaration


app = typer.Typer(
    no_args_is_help=True,
    help="Answer a coordinator about your records, behind your own budget, and see what left.",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Folder = Annotated[Path, typer.Argument(help="Folder of the source.")]
Which = Annotated[
    str | None,
    typer.Option("--enrollment", metavar="ID", help="Which enrollment, or how its id begins."),
]


@app.command(
    epilog="Example:  veracal source init north --name 'North Hospital' --epsilon 3 "
    "--unit patient --at-most 3 --heads /mnt/other/north.heads"
)
def init(
    folder: Annotated[Path, typer.Argument(help="New folder, on a local disk.")],
    name: Annotated[str, typer.Option(help="What the institution is called in public.")],
    epsilon: Annotated[float, typer.Option(help="Most that all coordinators may ever spend.")],
    delta: Annotated[float, typer.Option(help="Failure probability; 0 for pure.")] = 0.0,
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    unit: Annotated[str, typer.Option(help="Whom to protect: record, patient, …")] = "record",
    at_most: Annotated[int, typer.Option(help="Most rows of one unit.")] = 1,
    heads: Annotated[
        Path | None,
        typer.Option(
            help="File on another disk or share in which signed heads of the ledgers are kept "
            "as well, so that a restored backup of the folder is noticed."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make a source: a key, and a budget for one set of people that never changes.

    Everybody who is asked about shares one budget, however many coordinators
    there are: make one source for one set of people, and no second one.
    """
    from veracal.accounting import Budget, Unit
    from veracal.cli import _source_output as _source_show
    from veracal.errors import VeracalError
    from veracal.federation import create_source

    try:
        budget = Budget(epsilon, delta, relation, Unit(unit, at_most))  # type: ignore[arg-type]
        source = create_source(folder, name, budget, heads=heads)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _source_show.show_new(source, json=json)


@app.command(
    epilog="Example:  veracal source enroll north --coordinator study.pub --epsilon 1 "
    "--max-per-answer 0.6 --model model --data visits.csv --out north.terms"
)
def enroll(
    folder: Folder,
    coordinator: Annotated[
        str, typer.Option(metavar="KEY", help="Coordinator's public key, or a file with it.")
    ],
    epsilon: Annotated[float, typer.Option(help="Most that this coordinator may ever spend.")],
    out: Annotated[Path, typer.Option(help="New file for the terms, to hand over.")],
    max_per_answer: Annotated[
        float | None, typer.Option(help="Most that one answer may cost; by default all.")
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            help="File of logits or probabilities, with labels (npz, CSV, Parquet). It is a "
            "data set of its own, with a full budget beside that of the table it was computed "
            "from, unless --ledger names the ledger of that table."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Table that --model scores, in place of --scores.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Artifact of 'veracal fit', or the file of any other model."),
    ] = None,
    model_hash: Annotated[
        str | None, typer.Option(metavar="HEX", help="SHA-256 of the model, without its file.")
    ] = None,
    classes: _predictions.Classes = None,
    unit: _predictions.UnitColumn = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Ledger of the data set, which pays as well; by default that of --data or "
            "--scores, opened with the source's whole budget if there is none."
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="Of --data, enroll only the records of this partition (train, test), as the "
            "ledger has assigned them, and charge that one alone."
        ),
    ] = None,
    kinds: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Queries to answer: their names, those of a method (binning, platt, …), "
            "'usual' (a temperature, its guard and figures), or 'all' that need no delta.",
        ),
    ] = "usual",
    delta: Annotated[
        float, typer.Option(help="Failure probability, for Gaussian noise; 0 for none.")
    ] = 0.0,
    temperatures: Annotated[
        str, typer.Option(metavar="LOW,HIGH", help="Range of temperatures that are answered.")
    ] = "0.5,6",
    bins: Annotated[int, typer.Option(help="Bins of confidence.")] = 15,
    clamp: Annotated[
        float, typer.Option(help="Most that the loss of one record counts.")
    ] = 10.0,
    parameters: Annotated[
        str,
        typer.Option(
            metavar="BITS,WEIGHT,BIAS", help="Grid and bounds of the parameters of affine maps."
        ),
    ] = "12,16,16",
    min_records: Annotated[
        int, typer.Option(help="Records there are at least; the coordinator reads it.")
    ] = 100,
    max_records: Annotated[
        int, typer.Option(help="Records there are at most; the coordinator reads it.")
    ] = 1_000_000,
    deadline: Annotated[
        float, typer.Option(help="Seconds after which every reply leaves.")
    ] = 10.0,
    expires: Annotated[
        str | None, typer.Option(metavar="DAY", help="Last day, as in 2027-12-31 (UTC).")
    ] = None,
    node_key_out: Annotated[
        Path | None,
        typer.Option(
            help="For Flower: new file for the public key of this source's node, to hand over "
            "with the terms."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether to go on.")] = False,
    json: Json = False,
) -> None:
    """Declare what one coordinator may ask about your records, and how often.

    Everything is declared here, by you; a request can choose among it and bring
    nothing of its own. The records are checked and copied now, every query
    is tried once (its answer is thrown away), and what you are about to allow
    is shown before anything is written.
    """
    from veracal.cli import _source_enroll, _source_records
    from veracal.errors import VeracalError

    if json and not yes:
        raise typer.BadParameter(
            "add --yes, if you know what you allow: nobody is asked here.", param_hint="--json"
        )
    places = _source_records.RecordPaths(
        scores, data, model, model_hash, classes, unit, ledger, partition
    )

    def declared(mark: str) -> "Declaration":
        return _source_enroll.parse_declaration(
            coordinator=_source_records.read_key(coordinator),
            model=mark,
            epsilon=epsilon,
            max_per_answer=max_per_answer,
            delta=delta,
            kinds=kinds,
            temperatures=temperatures,
            bins=bins,
            clamp=clamp,
            parameters=parameters,
            min_records=min_records,
            max_records=max_records,
            deadline=deadline,
            expires=expires,
        )

    try:
        outs = _source_enroll.OutputFiles(out, node_key_out)
        _source_enroll.enroll_source(folder, places, declared, outs, yes=yes, json=json)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command(epilog="Example:  veracal source serve north --inbox in --outbox out")
def serve(
    folder: Folder,
    enrollment: Which = None,
    inbox: Annotated[
        Path | None, typer.Option(help="Folder in which requests arrive as files.")
    ] = None,
    outbox: Annotated[
        Path | None, typer.Option(help="Folder for the answers, which you carry back.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="With files: answer what is there, and end.")
    ] = False,
    flower: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="SuperLink of Flower to connect to."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="With --flower: certificate that it must show.")
    ] = None,
    node_key: Annotated[
        Path | None,
        typer.Option(help="With --flower: private key of this node, if not the folder's own."),
    ] = None,
) -> None:
    """Answer requests until stopped by Ctrl-C, by files or over Flower.

    Nothing that arrives is run or trusted: a request is at most 4 KiB, signed by
    the coordinator, and asks for what you enrolled, or it is refused. What
    happens is told here, and kept for 'veracal source log'.
    """
    from veracal.cli import _source_enroll

    ways = _source_enroll.TransportOptions(inbox, outbox, flower, ca, node_key, once)
    _source_enroll.serve_source(folder, enrollment, ways)


@app.command(epilog="Example:  veracal source status north")
def status(folder: Folder, json: Json = False) -> None:
    """Show what is granted, spent and left, and whether files and books are in order.

    Exit 1 if something is wrong.
    """
    from veracal.cli import _source_output as _source_show

    if not _source_show.show_status(folder, json=json):
        raise typer.Exit(1)


@app.command(epilog="Example:  veracal source log north")
def log(
    folder: Folder,
    enrollment: Which = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Show so many answers and refusals only.")
    ] = None,
    json: Json = False,
) -> None:
    """Show every query that was answered, the numbers that left, and what was refused.

    The ledger's chain of hashes, the answers and the signed heads are checked
    while they are read; exit 1 if something is wrong with them.
    """
    from veracal.cli import _source_output as _source_show

    if not _source_show.show_log(folder, enrollment, last, json=json):
        raise typer.Exit(1)


@app.command(epilog="Example:  veracal source revoke north 4f3a")
def revoke(
    folder: Folder,
    enrollment: Annotated[str, typer.Argument(metavar="ID", help="Or how it begins.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether to go on.")] = False,
    json: Json = False,
) -> None:
    """Answer a coordinator no more, from now on and for good.

    What it was granted is not given back to the budget, and what it was told
    cannot be taken back.
    """
    from veracal.cli import _source_output as _source_show

    _source_show.revoke(folder, enrollment, yes=yes, json=json)
