"""What a source declares at enrollment, by itself and in public: its terms.

Everything that a query needs and that could hurt the people in the records (ranges, bins,
bounds, budget, whom to protect) stands here, signed by the source. A request can choose among
what is declared, and nothing more.
"""

import datetime
from dataclasses import dataclass, field, fields
from typing import Any

from veracal import _checks
from veracal.accounting import MICRO, RELATIONS, Budget, Relation, Unit, to_micro
from veracal.calibration import ParameterGrid, TemperatureGrid
from veracal.data import Kind
from veracal.errors import DataError
from veracal.federation.protocol import envelopes as schema
from veracal.federation.protocol.envelopes import (
    MAX_TERMS_BYTES,
    TERMS,
    EnvelopeError,
    PrivateKey,
    PublicKey,
    is_hexadecimal,
    read_unverified,
    seal,
    unseal,
)

ID_DIGITS = 32  # hexadecimal digits of the id of an enrollment, and of a version of its data
HASH_DIGITS = 64  # of the hash of a model
MAX_CLASSES = 10_000
MAX_BINS = 1_000
MAX_MICRO_EPSILON = 1_000 * MICRO
_NAME = 100


@dataclass(frozen=True)
class Terms:
    """What a source answers, to whom, how often, and with which bounds.

    Attributes
    ----------
    source : str
        Id of the enrollment: 32 random hexadecimal digits.
    name : str
        What the institution is called in public.
    key : PublicKey
        The source's, which signs its answers.
    coordinator : PublicKey
        The only one whose requests are read.
    model : str
        SHA-256 of the model that the records were scored by.
    data : str
        Mark of this version of the records: random digits, not a hash of them, which whoever
        guesses the records could compare.
    classes : int
    reads : {"logits", "probabilities"}
        Kind of the scores.
    relation : {"add-remove", "replace-one"}
    unit : Unit
    micro_epsilon : int
        All that this coordinator may ever spend, in millionths of epsilon.
    delta : float
        0 unless answers with Gaussian noise are allowed.
    max_per_answer : int
        Most that one answer may cost, in millionths of epsilon.
    kinds : tuple of str
        Queries that are answered (:mod:`veracal.federation.protocol.queries`).
    temperatures : TemperatureGrid
        Public range, and grid.
    bins : int
    clamp : float
        Largest loss of one record.
    parameters : ParameterGrid
        Of affine maps.
    min_records, max_records : int
        *Declared*: as many the source has at least, and at most. The first was compared with
        the records at enrollment; the second bounds what answers can be believed.
    deadline : float
        Seconds after which every reply leaves, answer or refusal.
    expires : str or None
        Last day on which the coordinator's key is good, as in 2027-12-31 (UTC).
    """

    source: str
    name: str
    key: PublicKey
    coordinator: PublicKey
    model: str
    data: str
    classes: int
    reads: Kind
    relation: Relation
    unit: Unit
    micro_epsilon: int
    delta: float
    max_per_answer: int
    kinds: tuple[str, ...]
    temperatures: TemperatureGrid = field(default_factory=lambda: TemperatureGrid(0.5, 6.0))
    bins: int = 15
    clamp: float = 10.0
    parameters: ParameterGrid = field(default_factory=ParameterGrid)
    min_records: int = 1
    max_records: int = 1_000_000
    deadline: float = 10.0
    expires: str | None = None

    def __post_init__(self) -> None:
        for name, digits in (
            ("source", ID_DIGITS),
            ("data", ID_DIGITS),
            ("model", HASH_DIGITS),
        ):
            if not is_hexadecimal(getattr(self, name), digits):
                raise ValueError(f"Expected {name} to be {digits} hexadecimal digits.")
        _checks.whole(classes=self.classes, least=2)
        _checks.whole(micro_epsilon=self.micro_epsilon, max_per_answer=self.max_per_answer)
        _checks.whole(bins=self.bins, min_records=self.min_records)
        _checks.whole(max_records=self.max_records, least=int(self.min_records))
        _checks.positive(clamp=self.clamp, deadline=self.deadline)
        _checks.one_of(RELATIONS, relation=self.relation)
        if self.max_per_answer > self.micro_epsilon:
            raise ValueError(
                f"Expected one answer to cost at most the whole budget, got "
                f"{self.max_per_answer / MICRO:g} of {self.micro_epsilon / MICRO:g}."
            )
        if self.expires is not None:
            parse_day(self.expires)
        try:
            schema.check_fields(self.to_json(), _CHECKS, "the terms")
        except EnvelopeError as cause:
            raise ValueError(f"Expected terms that can be declared: {cause}.") from cause

    @property
    def budget(self) -> Budget:
        """All that this coordinator may ever spend."""
        return Budget(self.micro_epsilon / MICRO, self.delta, self.relation, self.unit)

    def is_expired(self, today: datetime.date) -> bool:
        """Whether the coordinator's key is no longer good."""
        return self.expires is not None and today > parse_day(self.expires)

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        grid, maps = self.temperatures, self.parameters
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "key": self.key.text,
            "coordinator": self.coordinator.text,
            "unit": {"at_most": self.unit.at_most, "name": self.unit.name},
            "kinds": list(self.kinds),
            "delta": float(self.delta),
            "clamp": float(self.clamp),
            "deadline": float(self.deadline),
            "temperatures": [float(grid.low), float(grid.high), int(grid.bits)],
            "parameters": [maps.bits, maps.most_weight, maps.most_bias],
        }

    def seal(self, key: PrivateKey) -> bytes:
        """Signed by the source, as it hands them to the coordinator."""
        return seal(TERMS, self.to_json(), key)

    @classmethod
    def unseal(cls, raw: bytes, where: str = "terms") -> "Terms":
        """Read terms that a source has signed.

        They name the key that they are signed by: whether it belongs to the institution is for
        people to find out, by comparing :attr:`key` with what the institution says.

        Raises
        ------
        DataError
            For anything else.
        """
        try:
            key = PublicKey(str(read_unverified(TERMS, raw, most=MAX_TERMS_BYTES).get("key")))
            body = unseal(TERMS, raw, key, most=MAX_TERMS_BYTES)
            return cls.from_json(body)
        except ValueError as cause:
            raise DataError(
                where,
                "terms as `veracal source enroll` writes them",
                f"something else: {cause}"[:200],
                "Get the file again from the source.",
            ) from cause

    @classmethod
    def from_json(cls, body: Any) -> "Terms":
        """Make terms of what :meth:`to_json` gives; whatever is not that is refused."""
        told = dict(schema.check_fields(body, _CHECKS, "the terms"))
        unit = schema.check_fields(told["unit"], _UNIT, "the unit")
        return cls(
            **{
                **told,
                "key": PublicKey(told["key"]),
                "coordinator": PublicKey(told["coordinator"]),
                "unit": Unit(unit["name"], unit["at_most"]),
                "kinds": tuple(told["kinds"]),
                "temperatures": parse_temperatures(told["temperatures"]),
                "parameters": ParameterGrid(*told["parameters"]),
            }
        )


def micro_of(epsilon: float) -> int:
    """Millionths of epsilon, as the number is written in decimal."""
    return to_micro(epsilon)


def parse_temperatures(told: list[Any]) -> TemperatureGrid:
    """A range of temperatures and the bits of its grid."""
    low, high, bits = told
    numbers = schema.number(1e-6, 1e6)
    if not (numbers(low) and numbers(high) and schema.integer(0, 30)(bits)):
        raise EnvelopeError("'temperatures' of the terms is not what it may be")
    return TemperatureGrid(low, high, bits)


def parse_day(text: str) -> datetime.date:
    """A day, as in 2027-12-31."""
    try:
        return datetime.date.fromisoformat(text)
    except (TypeError, ValueError) as cause:
        raise ValueError(f"Expected a day, as in 2027-12-31, got {text!r}.") from cause


_UNIT: dict[str, schema.Check] = {
    "name": schema.text(_NAME),
    "at_most": schema.integer(1, 10**6),
}
_CHECKS: dict[str, schema.Check] = {
    "source": schema.hexadecimal(ID_DIGITS),
    "name": schema.text(_NAME),
    "key": schema.hexadecimal(64),
    "coordinator": schema.hexadecimal(64),
    "model": schema.hexadecimal(HASH_DIGITS),
    "data": schema.hexadecimal(ID_DIGITS),
    "classes": schema.integer(2, MAX_CLASSES),
    "reads": schema.one_of(("logits", "probabilities")),
    "relation": schema.one_of(RELATIONS),
    "unit": schema.is_object,
    "micro_epsilon": schema.integer(1, MAX_MICRO_EPSILON),
    "delta": schema.number(0.0, 0.1),
    "max_per_answer": schema.integer(1, MAX_MICRO_EPSILON),
    "kinds": schema.list_of(schema.text(40), 1, 40),
    "temperatures": schema.list_of(lambda _: True, 3, 3),
    "bins": schema.integer(1, MAX_BINS),
    "clamp": schema.number(1e-3, 1e3),
    "parameters": schema.list_of(schema.integer(0, 1_024), 3, 3),
    "min_records": schema.integer(1, 2**40),
    "max_records": schema.integer(1, 2**40),
    "deadline": schema.number(0.01, 86_400.0),
    "expires": schema.optional(schema.text(10, least=10)),
}
