"""The commands of an institution that answers remote queries about its records."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from veracal.cli import _options, _output
from veracal.errors import DataError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Answer a coordinator's queries about your records within your own privacy budget.",
)

Folder = Annotated[Path, typer.Argument(help="Folder of the source.")]
Which = Annotated[
    str | None,
    typer.Option("--enrollment", metavar="ID", help="Id of the enrollment, or a prefix of it."),
]


@app.command(
    epilog="Example:  veracal source init north --name 'North Hospital' --epsilon 3 "
    "--unit patient --max-contributions 3 --heads /mnt/other/north.heads"
)
def init(
    folder: Annotated[Path, typer.Argument(help="New folder, on a local disk.")],
    name: Annotated[str, typer.Option(help="Public name of the institution.")],
    epsilon: Annotated[float, typer.Option(help="Total budget for all coordinators.")],
    delta: Annotated[
        float, typer.Option(help="Delta of the budget; 0 for pure differential privacy.")
    ] = 0.0,
    relation: _options.Relation = "add-remove",
    unit: _options.Unit = "record",
    max_contributions: _options.UnitRows = 1,
    heads: Annotated[
        Path | None,
        typer.Option(
            help="Second file for the signed heads of the ledgers, on another disk or share, "
            "so that a restored backup of the folder is detected."
        ),
    ] = None,
    json: _options.Json = False,
) -> None:
    """Create a source: a key, and a fixed privacy budget for one set of individuals.

    All coordinators share this budget. Create exactly one source for each set of
    individuals.
    """
    from veracal.accounting import Budget, Unit

    with _output.usage_errors():
        budget = Budget(epsilon, delta, relation, Unit(unit, max_contributions))  # type: ignore[arg-type]
    from veracal.cli import _source_output
    from veracal.federation import create_source

    with _output.usage_errors():
        source = create_source(folder, name, budget, heads=heads)
    _source_output.print_new(source, json=json)


@app.command(
    epilog="Example:  veracal source enroll north --coordinator study.pub --epsilon 1 "
    "--max-per-answer 0.6 --model model --data visits.csv --out north.terms"
)
def enroll(
    context: typer.Context,
    folder: Folder,
    coordinator: Annotated[
        str,
        typer.Option(
            metavar="KEY", help="Coordinator's public key, or a file that contains it."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="Total budget of this coordinator.")],
    out: Annotated[
        Path, typer.Option(help="New file for the signed terms, for the coordinator.")
    ],
    max_per_answer: Annotated[
        float | None, typer.Option(help="Largest epsilon of one answer; by default the budget.")
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            help="File of logits or probabilities, with labels (npz, CSV, Parquet). It counts "
            "as a separate data set with its own budget, unless --ledger gives the ledger of "
            "the table that it was computed from."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Table that --model scores, in place of --scores.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a model that 'veracal fit' wrote, or the file of another model."
        ),
    ] = None,
    model_hash: Annotated[
        str | None, typer.Option(metavar="HEX", help="SHA-256 of the model, without its file.")
    ] = None,
    classes: _options.Classes = None,
    unit: _options.UnitColumn = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Ledger of the data set, which is charged too; by default that of --data or "
            "--scores, created with the source's whole budget if there is none."
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="Enroll only the records of --data in this partition (train, test), as the "
            "ledger assigned them, and charge only this partition."
        ),
    ] = None,
    kinds: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Queries to answer: their names, a method (binning, platt, …), 'default' (a "
            "temperature with guard and measurement), or 'all' that need no delta.",
        ),
    ] = "default",
    delta: Annotated[
        float, typer.Option(help="Delta of this coordinator, for Gaussian noise; 0 for none.")
    ] = 0.0,
    temperatures: Annotated[
        str, typer.Option(metavar="LOW,HIGH", help="Range of temperatures in queries.")
    ] = "0.5,6",
    bins: Annotated[int, typer.Option(help="Number of equal-width confidence bins.")] = 15,
    clamp: Annotated[float, typer.Option(help="Bound on the loss of one record.")] = 10.0,
    parameters: Annotated[
        str,
        typer.Option(
            metavar="BITS,WEIGHT,BIAS", help="Grid and bounds of the parameters of affine maps."
        ),
    ] = "12,16,16",
    min_records: Annotated[
        int, typer.Option(help="Public lower bound on the number of records.")
    ] = 100,
    max_records: Annotated[
        int, typer.Option(help="Public upper bound on the number of records.")
    ] = 1_000_000,
    deadline: Annotated[
        float, typer.Option(help="Seconds after which every reply is sent.")
    ] = 10.0,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="Last day (UTC) on which requests are answered, such as 2027-12-31; by default "
            "until it is revoked.",
        ),
    ] = None,
    node_key_out: Annotated[
        Path | None,
        typer.Option(
            help="For Flower: new file for the public key of this source's node, for the "
            "coordinator."
        ),
    ] = None,
    yes: _options.Yes = False,
    json: _options.Json = False,
) -> None:
    """Declare which queries one coordinator may send, at which total cost.

    Requests can only choose among these declarations. The records are checked
    and copied now, every query is evaluated once (its answer is discarded), and
    a summary is shown for confirmation before anything is written.
    """
    _options.check_confirmation(yes=yes, json=json)
    from veracal.cli import _source_enroll

    paths = _source_enroll.RecordPaths(
        scores, data, model, model_hash, classes, unit, ledger, partition
    )

    declare = partial(_source_enroll.parse_declaration, context.params)
    with _output.usage_errors():
        _source_enroll.enroll_source(
            folder, paths, declare, out, node_key_out, yes=yes, json=json
        )


@app.command(epilog="Example:  veracal source serve north --inbox in --outbox out")
def serve(
    folder: Folder,
    enrollment: Which = None,
    inbox: Annotated[
        Path | None, typer.Option(help="Folder where request files arrive.")
    ] = None,
    outbox: Annotated[
        Path | None, typer.Option(help="Folder for answer files, which you carry back.")
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="With --inbox: answer the requests that are there, then exit."
        ),
    ] = False,
    flower: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Flower SuperLink to connect to."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="With --flower: certificate of its authority.")
    ] = None,
    node_key: Annotated[
        Path | None,
        typer.Option(help="With --flower: private key of this node, if not in the folder."),
    ] = None,
) -> None:
    """Answer requests by files or over Flower, until stopped by Ctrl-C.

    Requests are untrusted: each is at most 4 KiB, signed by the coordinator, and
    within your declarations, or it is refused. Every step is printed here and
    stored for 'veracal source log'.
    """
    files, network = (inbox, outbox), (flower, ca)
    if not (any(files) ^ any((*network, node_key))):
        raise typer.BadParameter(
            "Choose one transport: --inbox and --outbox for files, or --flower and --ca.",
            param_hint="--inbox",
        )
    if any(files) and not all(files):
        raise typer.BadParameter("--inbox and --outbox go together.", param_hint="--inbox")
    if not any(files) and not all(network):
        raise typer.BadParameter("--flower and --ca go together.", param_hint="--flower")
    if once and inbox is None:
        raise typer.BadParameter("Only for files.", param_hint="--once")
    _check_folder(folder)
    from veracal.cli import _source_enroll

    transport = _source_enroll.TransportOptions(inbox, outbox, flower, ca, node_key, once)
    _source_enroll.serve_source(folder, enrollment, transport)


@app.command(epilog="Example:  veracal source status north")
def status(folder: Folder, json: _options.Json = False) -> None:
    """Show granted, spent and remaining budgets, and check files and ledgers.

    The exit code is 1 if there is a problem.
    """
    _check_folder(folder)
    from veracal.cli import _source_output

    _source_output.print_status(folder, json=json)


@app.command(epilog="Example:  veracal source log north")
def log(
    folder: Folder,
    enrollment: Which = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Show only the latest answers and refusals.")
    ] = None,
    json: _options.Json = False,
) -> None:
    """Show every answered query with the numbers that were sent, and refused requests.

    The hash chain of the ledger, the answers and the signed heads are verified.
    The exit code is 1 if there is a problem.
    """
    _check_folder(folder)
    from veracal.cli import _source_output

    _source_output.print_log(folder, enrollment, last, json=json)


@app.command(epilog="Example:  veracal source revoke north 4f3a")
def revoke(
    folder: Folder,
    enrollment: Annotated[str, typer.Argument(metavar="ID", help="Id, or a prefix of it.")],
    yes: _options.Yes = False,
    json: _options.Json = False,
) -> None:
    """Permanently stop answering a coordinator.

    Its granted budget is not refunded, and sent answers cannot be recalled.
    """
    _options.check_confirmation(yes=yes, json=json)
    _check_folder(folder)
    from veracal.federation import read_enrollment, read_source
    from veracal.federation import revoke as revoke_enrollment

    source = read_source(folder)
    revoked = read_enrollment(source, enrollment)
    terms = revoked.terms
    which = f"{terms.source[:12]} of the coordinator {terms.coordinator.fingerprint}"
    if not (yes or typer.confirm(f"Permanently revoke enrollment {which}?", err=True)):
        _output.print_status("Nothing was changed.")
        raise typer.Exit(1)
    revoke_enrollment(source, revoked)
    if json:
        _output.print_json({"enrollment": terms.source, "revoked": True})
    else:
        _output.print_line(
            f"Enrollment {terms.source[:12]} is revoked. All further requests are refused. Its "
            "share of the budget is not refunded."
        )


def _check_folder(folder: Path) -> None:
    """Reject a missing folder before the slow imports, with the error of ``read_source``."""
    if not folder.is_dir():
        raise DataError(
            str(folder.absolute()),
            "the folder of a source that `veracal source init` created",
            "no folder",
            "Check the path, or create a source.",
        )
