"""The public terms that a source declares and signs at enrollment, and the hash of its model.

Everything that the privacy of an answer depends on (ranges, bins, bounds, budget, unit of
privacy) is declared here by the source. A request only chooses among what the terms allow.
"""

import datetime
import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from veracal import _checks
from veracal.accounting import MICRO, RELATIONS, Budget, Relation, Unit
from veracal.artifact import WEIGHTS, PrivateClassifier
from veracal.calibration import ParameterGrid, TemperatureGrid
from veracal.data import Kind, check_readable, translate_os_errors
from veracal.errors import DataError
from veracal.federation.protocol import envelopes as schema
from veracal.federation.protocol.envelopes import (
    MAX_TERMS_BYTES,
    TERMS,
    EnvelopeError,
    PrivateKey,
    PublicKey,
    read_unverified,
    seal,
    unseal,
)
from veracal.ledger import canonical, digest

ID_DIGITS = 32  # hexadecimal digits of an enrollment id and of a data version
HASH_DIGITS = 64  # hexadecimal digits of a SHA-256
MAX_CLASSES = 10_000
MAX_BINS = 1_000
MAX_MICRO_EPSILON = 1_000 * MICRO
MAX_NAME = 100


@dataclass(frozen=True)
class Terms:
    """What a source answers, to which coordinator, at what cost and with which bounds.

    Each field is annotated with the check of its JSON value.

    Attributes
    ----------
    source : str
        Id of the enrollment, 32 random hexadecimal digits.
    name : str
        Public name of the institution.
    key : PublicKey
        Public key of the source, which verifies its answers.
    coordinator : PublicKey
        Public key of the only coordinator whose requests are accepted.
    model : str
        SHA-256 of the model that scored the records.
    data : str
        Id of this version of the records: random digits. A hash of the records would let
        anyone who guesses them confirm the guess.
    classes : int
    reads : {"logits", "probabilities"}
        Type of the scores.
    relation : {"add-remove", "replace-one"}
    unit : Unit
    micro_epsilon : int
        Total budget of this coordinator, in millionths of epsilon.
    delta : float
        0 unless answers with Gaussian noise are allowed.
    max_per_answer : int
        Largest cost of one answer, in millionths of epsilon.
    kinds : tuple of str
        Names of the queries that are answered
        (:mod:`veracal.federation.protocol.queries`).
    temperatures : TemperatureGrid
        Public range and grid of temperatures.
    bins : int
    clamp : float
        Bound on the loss of one record.
    parameters : ParameterGrid
        Grid and bounds of the parameters of affine maps.
    min_records, max_records : int
        *Declared* bounds on the number of records, checked at enrollment. The upper bound
        limits how large an answer the coordinator accepts.
    deadline : float
        Seconds after which every reply is sent, answer or refusal.
    expires : str or None
        Last day on which requests are accepted, such as 2027-12-31 (UTC).
    """

    source: Annotated[str, schema.hexadecimal(ID_DIGITS)]
    name: Annotated[str, schema.text(MAX_NAME)]
    key: Annotated[PublicKey, schema.hexadecimal(64)]
    coordinator: Annotated[PublicKey, schema.hexadecimal(64)]
    model: Annotated[str, schema.hexadecimal(HASH_DIGITS)]
    data: Annotated[str, schema.hexadecimal(ID_DIGITS)]
    classes: Annotated[int, schema.integer(2, MAX_CLASSES)]
    reads: Annotated[Kind, schema.one_of(("logits", "probabilities"))]
    relation: Annotated[Relation, schema.one_of(RELATIONS)]
    unit: Annotated[Unit, schema.instance(dict)]
    micro_epsilon: Annotated[int, schema.integer(1, MAX_MICRO_EPSILON)]
    delta: Annotated[float, schema.number(0.0, 0.1)]
    max_per_answer: Annotated[int, schema.integer(1, MAX_MICRO_EPSILON)]
    kinds: Annotated[tuple[str, ...], schema.list_of(schema.text(40), 1, 40)]
    temperatures: Annotated[TemperatureGrid, schema.list_of(lambda _: True, 3, 3)] = field(
        default_factory=lambda: TemperatureGrid(0.5, 6.0)
    )
    bins: Annotated[int, schema.integer(1, MAX_BINS)] = 15
    clamp: Annotated[float, schema.number(1e-3, 1e3)] = 10.0
    parameters: Annotated[ParameterGrid, schema.list_of(schema.integer(0, 1_024), 3, 3)] = (
        field(default_factory=ParameterGrid)
    )
    min_records: Annotated[int, schema.integer(1, 2**40)] = 1
    max_records: Annotated[int, schema.integer(1, 2**40)] = 1_000_000
    deadline: Annotated[float, schema.number(0.01, 86_400.0)] = 10.0
    expires: Annotated[str | None, schema.optional(schema.text(10, min_length=10))] = None

    def __post_init__(self) -> None:
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
            _parse_day(self.expires)
        try:
            schema.check_fields(self.to_json(), _CHECKS, "the terms")
        except EnvelopeError as cause:
            raise ValueError(f"Expected valid terms: {cause}.") from cause

    @property
    def budget(self) -> Budget:
        """Total budget of this coordinator."""
        return Budget(self.micro_epsilon / MICRO, self.delta, self.relation, self.unit)

    def is_expired(self, day: datetime.date | None = None) -> bool:
        """Whether the last day of the terms is over on a day, by default today."""
        return self.expires is not None and (day or today()) > _parse_day(self.expires)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        temperatures, parameters = self.temperatures, self.parameters
        return {
            **vars(self),
            "key": self.key.text,
            "coordinator": self.coordinator.text,
            "unit": asdict(self.unit),
            "kinds": list(self.kinds),
            "delta": float(self.delta),
            "clamp": float(self.clamp),
            "deadline": float(self.deadline),
            "temperatures": [
                float(temperatures.low),
                float(temperatures.high),
                int(temperatures.bits),
            ],
            "parameters": [parameters.bits, parameters.most_weight, parameters.most_bias],
        }

    def seal(self, key: PrivateKey) -> bytes:
        """Signed terms, as the source gives them to the coordinator."""
        return seal(TERMS, self.to_json(), key)

    @classmethod
    def unseal(cls, raw: bytes, where: str = "terms") -> "Terms":
        """Read signed terms, and verify the signature with the key that they name.

        That the key belongs to the institution is not verified: compare the fingerprint of
        :attr:`key` with the institution by telephone or in person.
        """
        try:
            key = PublicKey(
                str(read_unverified(TERMS, raw, max_bytes=MAX_TERMS_BYTES).get("key"))
            )
            body = unseal(TERMS, raw, key, max_bytes=MAX_TERMS_BYTES)
            return cls.from_json(body)
        except ValueError as cause:
            raise DataError(
                where,
                "terms that `veracal source enroll` wrote",
                f"something else: {cause}"[:200],
                "Get the file again from the source.",
            ) from cause

    @classmethod
    def from_json(cls, body: Any) -> "Terms":
        """Validate the output of :meth:`to_json` and convert it to terms."""
        fields = schema.check_fields(body, _CHECKS, "the terms")
        low, high, bits = fields["temperatures"]
        is_valid = schema.number(1e-6, 1e6)
        if not (is_valid(low) and is_valid(high) and schema.integer(0, 30)(bits)):
            raise EnvelopeError("'temperatures' of the terms has an invalid value")
        return cls(
            **{
                **fields,
                "key": PublicKey(fields["key"]),
                "coordinator": PublicKey(fields["coordinator"]),
                "unit": parse_unit(fields["unit"]),
                "kinds": tuple(fields["kinds"]),
                "temperatures": TemperatureGrid(low, high, bits),
                "parameters": ParameterGrid(*fields["parameters"]),
            }
        )


_CHECKS = schema.checks_of(Terms)


def parse_unit(body: object) -> Unit:
    """Validate the fields of a unit of privacy."""
    checks = {"name": schema.text(MAX_NAME), "max_contributions": schema.integer(1, 10**6)}
    fields = schema.check_fields(body, checks, "the unit")
    return Unit(fields["name"], fields["max_contributions"])


def check_name(name: str) -> None:
    """Reject a public name that terms cannot contain."""
    if not schema.text(MAX_NAME)(name):
        raise ValueError(
            f"Expected a name of 1 to {MAX_NAME} printable characters, got {name!r}."
        )


def today() -> datetime.date:
    """Today's date, in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def _parse_day(text: str) -> datetime.date:
    """A date in ISO format, such as 2027-12-31."""
    try:
        return datetime.date.fromisoformat(text)
    except (TypeError, ValueError) as cause:
        raise ValueError(f"Expected a date such as 2027-12-31, got {text!r}.") from cause


def model_hash(path: str | Path) -> str:
    """Hash of a model: an artifact or any other file.

    Parameters
    ----------
    path : path
        A folder that ``veracal fit`` wrote, or a file such as the weights of a network.

    Returns
    -------
    str
        SHA-256 in hexadecimal: of the bytes of a file, or of everything that the scores of an
        artifact depend on before calibration. So it does not change when a calibration map is
        written to the artifact.
    """
    path = Path(path)
    if path.is_dir():
        return artifact_hash(PrivateClassifier.load(path))
    with translate_os_errors(path), check_readable(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def artifact_hash(classifier: PrivateClassifier) -> str:
    """Hash of everything that the scores of an artifact depend on before calibration."""
    manifest = classifier.manifest
    return digest(
        canonical(
            {
                "classes": list(manifest.classes),
                "features": manifest.features,
                "model": dict(manifest.model),
                "schema": manifest.schema,
                WEIGHTS: digest(classifier.weights.to_bytes()),
            }
        )
    )
