"""The folder of a source: one set of people, one key, one budget over all calibrators."""

import datetime
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from veracal.artifact.folder import read_file, sync_folder
from veracal.data.files import new_file, placed
from veracal.data.limits import no_surprises
from veracal.errors import DataError
from veracal.federation.protocol import fields as schema
from veracal.federation.protocol.envelopes import EnvelopeError, parsed
from veracal.federation.protocol.keys import PrivateKey, PublicKey
from veracal.federation.protocol.terms import MARK
from veracal.federation.source.marks import MarkKey
from veracal.federation.source.signed_heads import SignedHeads, start_file
from veracal.privacy.budget import Budget, Unit
from veracal.privacy.events import Approximate, Event, Pure
from veracal.privacy.ledger.book import Ledger, open_ledger
from veracal.privacy.ledger.chain import canonical

FORMAT = "veracal source 1"
DESCRIPTION, KEY, SHARES, HEADS, ENROLLED = (
    "source.json",
    "key.pem",
    "shares.ledger",
    "heads",
    "enrolled",
)
BUILDING = ".new."  # how the folder of an enrolment begins that is not finished
_MOST = 2**16  # bytes of a description
_MOST_ENROLLED = 10_000


@dataclass(frozen=True)
class SourceFolder:
    """A source as it lies on the disk.

    Attributes
    ----------
    path : path
    id : str
        32 random hexadecimal digits, which the heads of its own ledger are signed for.
    name : str
        What the institution is called in public.
    public : PublicKey
    unit : Unit
        Whom the source protects, with all of their rows.
    created : str
        Day on which it was made.
    heads : path or None
        Second file that signed heads are kept in, elsewhere.
    """

    path: Path
    id: str
    name: str
    public: PublicKey
    unit: Unit
    created: str
    heads: Path | None

    @property
    def key(self) -> PrivateKey:
        """What signs; read from its file each time."""
        found = PrivateKey.read(self.path / KEY)
        if found.public != self.public:
            raise DataError(
                str(self.path / KEY),
                "the key that this source was made with",
                "another one",
                "Restore the right one, or make a new source.",
            )
        return found

    @property
    def marks(self) -> MarkKey:
        """What private files are marked with; read from its file each time."""
        return MarkKey.read(self.path)

    @property
    def shares(self) -> Ledger:
        """The budget of the institution, from which each enrolment takes its share."""
        return Ledger(self.path / SHARES)

    @property
    def budget(self) -> Budget:
        """All that calibrators together may ever spend."""
        total = self.shares.budget
        return Budget(total.epsilon, total.delta, total.relation, self.unit)

    def signed_heads(self, source: str, folder: Path) -> SignedHeads:
        """The heads of a ledger of this source, in its folder and elsewhere."""
        also = [] if self.heads is None else [self.heads]
        return SignedHeads(source, self.public, [folder / HEADS, *also])

    def enrolled(self) -> tuple[str, ...]:
        """Ids of all enrolments, in the order in which they took their shares."""
        place = self.path / ENROLLED
        with no_surprises(place):
            there = {each.name for each in place.iterdir() if is_mark(each.name)}
        order = [entry.request for entry in self.shares.entries() if entry.request in there]
        late = sorted(there - set(order))  # the ledger was set back: show them too
        return tuple(map(str, (*order, *late)))[:_MOST_ENROLLED]


def create_source(
    path: str | Path, name: str, budget: Budget, *, heads: str | Path | None = None
) -> SourceFolder:
    """Make the folder of a new source.

    Parameters
    ----------
    path : path
        A new folder, on a local disk; it appears whole or not at all.
    name : str
        What the institution is called in public.
    budget : Budget
        All that calibrators together may ever spend, and whom it protects. It never changes.
    heads : path, optional
        File to keep signed heads in as well: outside of the folder, best on another disk.

    Raises
    ------
    DataError, LedgerError
        If it cannot be made there.
    """
    place = Path(path).absolute()
    if not schema.text(100)(name):
        raise ValueError(f"Expected a name of 1 to 100 printable characters, got {name!r}.")
    new_file(place, "folder")
    also = None if heads is None else _outside(Path(heads).absolute(), place)
    key = PrivateKey.new()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    made = SourceFolder(
        place, secrets.token_hex(MARK // 2), name, key.public, budget.unit, today, also
    )
    with no_surprises(place):
        building = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
        try:
            _fill(building, made, key, budget)
            building.rename(place)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return made


def read_source(path: str | Path) -> SourceFolder:
    """Read the folder of a source.

    Raises
    ------
    DataError
        If it is none.
    """
    place = Path(path).absolute()
    if not place.is_dir():
        raise _no_source(place, "no folder")
    try:
        body = parsed(read_file(place, DESCRIPTION, _MOST))
        told = schema.closed(body, _CHECKS, "the description")
        unit = schema.closed(told["unit"], _UNIT, "the unit")
    except EnvelopeError as cause:
        raise _no_source(place, f"another description: {cause}") from cause
    return SourceFolder(
        place,
        told["id"],
        told["name"],
        PublicKey(told["key"]),
        Unit(unit["name"], unit["at_most"]),
        told["created"],
        None if told["heads"] is None else Path(told["heads"]),
    )


def share_event(budget: Budget) -> Event:
    """What an enrolment takes from the institution's budget: its whole budget, for good.

    The promise is to a unit with all of its rows, so the ledger counts units of one row.
    """
    if budget.pure:
        return Pure(budget.epsilon, budget.relation)
    return Approximate(budget.epsilon, budget.delta, budget.relation)


def is_mark(name: str) -> bool:
    """Whether a name is the id of an enrolment."""
    return schema.hexadecimal(MARK)(name)


def _fill(folder: Path, made: SourceFolder, key: PrivateKey, budget: Budget) -> None:
    """Write everything a new source has."""
    key.save(folder / KEY)
    MarkKey.new().save(folder)
    (folder / ENROLLED).mkdir(mode=0o700)
    counted = Budget(budget.epsilon, budget.delta, budget.relation, Unit(budget.unit.name))
    kind: dict[str, str] = {} if budget.pure else {"kind": "open", "composition": "addition"}
    open_ledger(folder / SHARES, counted, **kind)  # type: ignore[arg-type]
    start_file(folder / HEADS)
    if made.heads is not None:
        start_file(made.heads)
    body = {
        "created": made.created,
        "format": FORMAT,
        "heads": None if made.heads is None else str(made.heads),
        "id": made.id,
        "key": made.public.text,
        "name": made.name,
        "unit": {"at_most": made.unit.at_most, "name": made.unit.name},
    }
    with placed(folder / DESCRIPTION) as file:
        file.write(canonical(body).encode() + b"\n")
    sync_folder(folder)


def _outside(heads: Path, folder: Path) -> Path:
    """A second file of heads is worth something elsewhere only."""
    if heads.is_relative_to(folder):
        raise DataError(
            str(heads),
            "a file outside of the source's folder",
            "one inside",
            "Name one on another disk: whoever restores the folder restores all that is in it.",
        )
    if not heads.exists():
        new_file(heads)
    return heads


def _no_source(place: Path, found: str) -> DataError:
    """Error for a folder that is none of a source."""
    return DataError(
        str(place),
        "the folder of a source, as `veracal source init` makes it",
        found[:200],
        "Check the spelling, or make one.",
    )


_UNIT: dict[str, schema.Check] = {
    "at_most": schema.integer(1, 10**6),
    "name": schema.text(100),
}
_CHECKS: dict[str, schema.Check] = {
    "created": schema.text(10),
    "format": schema.one_of((FORMAT,)),
    "heads": schema.optional(schema.text(4_096)),
    "id": schema.hexadecimal(MARK),
    "key": schema.hexadecimal(64),
    "name": schema.text(100),
    "unit": schema.is_object,
}
