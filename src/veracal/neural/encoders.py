"""Models of Hugging Face in a folder: nothing is fetched, and no code of theirs is run.

Frozen networks of Hugging Face, from a folder, that turn pictures or texts into vectors.
"""

import hashlib
import inspect
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Floats
from veracal.data import MappedRows, Score, each_by_itself, no_surprises
from veracal.errors import DataError
from veracal.neural.precision import full_precision
from veracal.neural.pretrained import (
    EfficientNetLite0,
    MiniLM,
    arithmetic_settings,
    build_text_scorer,
    file_hash,
    load_fast_tokenizer,
    mean_token_states,
    pad_tokens,
    scale_to_unit_ball,
    synthetic_tokens,
)

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
_HEADS = ("classifier.", "fc.", "head.", "score.")
# Settings by which a config would have something fetched, compiled or run.
_CODE_SETTINGS = ("attn_implementation", "_attn_implementation", "quantization_config")
_PLAIN_VALUES = (None, "eager", "sdpa")


def load_model(kind: str, directory: str | PathLike[str], **head: Any) -> Any:
    """A model from a folder, in float32.

    Parameters
    ----------
    kind : str
        Class of transformers that finds out what the folder holds, such as "AutoModel".
    directory : path
        With ``config.json`` and weights as safetensors.
    **head
        For its ``from_pretrained``: how many labels a head has, say. A head that the folder
        does not have, or not for so many, gets random weights.

    Raises
    ------
    DataError
        If something else is missing or does not fit, or weights are there only as a pickle,
        which would run whatever code is in it.
    """
    folder = require_file("config.json", directory)
    _check_config(read_json(folder / "config.json"), folder)
    _check_weights(folder)
    transformers, torch = extra("transformers", "text"), extra("torch", "text")
    with (
        translate_errors(folder),
        torch.random.fork_rng(devices=[]),
    ):  # for the weights of a head
        model, found = getattr(transformers, kind).from_pretrained(
            folder,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **head,
            **_LOCAL,
        )
    whole = model.base_model is model
    base = "" if whole else f"{model.base_model_prefix}."
    spared = (f"{base}pooler.", *(_HEADS if whole and head else ()))
    unfit = [name for name in found["missing_keys"] if not name.startswith(spared)]
    unfit += [
        name
        for name, *_ in found["mismatched_keys"]
        if not (head and whole and name.startswith(_HEADS))
    ]
    if unfit := sorted(name for name in unfit if name.startswith(base)):
        raise DataError(
            str(folder),
            "weights that fit config.json",
            f"none for {unfit[0]}",
            "Name a folder that save_pretrained made, with all that it wrote.",
        )
    return model


def _check_config(config: Any, folder: Path) -> None:
    """Refuse a config, or a part of one, that asks for kernels or for other packages."""
    for name, value in config.items():
        if isinstance(value, dict) and name not in _CODE_SETTINGS:
            _check_config(value, folder)
        elif name in _CODE_SETTINGS and (isinstance(value, dict) or value not in _PLAIN_VALUES):
            raise DataError(
                str(folder / "config.json"),
                "a model that needs no other code",
                f"{name}",
                "Take the setting out, or save the model in full precision.",
            )


def read_json(path: Path) -> dict[str, Any]:
    """What a file of JSON says."""
    try:
        with no_surprises(path):
            found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError(str(path), "settings as JSON", "something else", "Save it anew.")
    return found


def load_component(
    kind: str, needed: str, directory: str | PathLike[str], **settings: Any
) -> Any:
    """What else there is in a folder, a tokenizer say, by the file that it is in."""
    folder, transformers = require_file(needed, directory), extra("transformers", "text")
    with translate_errors(folder):
        return getattr(transformers, kind).from_pretrained(folder, **settings, **_LOCAL)


def require_file(needed: str, directory: str | PathLike[str]) -> Path:
    """A folder with a file that it needs, or an error."""
    if not isinstance(directory, str | PathLike):
        raise ValueError(f"Expected the path of a folder, got {directory!r}.")
    folder = Path(directory).absolute()
    with no_surprises(folder):
        if not (folder / needed).is_file():
            raise DataError(
                str(folder),
                f"a folder with {needed}",
                "none" if folder.is_dir() else "no folder",
                "Name a folder that save_pretrained made; nothing is fetched here.",
            )
    return folder


def _check_weights(folder: Path) -> None:
    """Refuse weights that are pickled, and adapters, whose model may be elsewhere."""
    with no_surprises(folder):
        if (folder / "adapter_config.json").exists():
            raise DataError(
                str(folder),
                "the weights of a whole model",
                "adapters, which name a model of their own",
                "Load that model, and put peft.PeftModel.from_pretrained around it.",
            )
        if any(folder.glob("*.safetensors")):
            return
        pickled = sorted(one.name for kind in _PICKLED for one in folder.glob(kind))
    raise DataError(
        str(folder),
        "weights as safetensors",
        f"{pickled[0]}, which may run code when it is opened" if pickled else "none",
        "Save them with save_pretrained, on a machine that may run whatever is in them.",
    )


@contextmanager
def translate_errors(folder: Path) -> Iterator[None]:
    """Turn what transformers says about a folder into a clear error, and nothing else of it."""
    logging = extra("transformers", "text").logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as cause:  # of all kinds, for whatever a file may hold
        said = str(cause).strip().partition("\n")[0]
        raise DataError(
            str(folder),
            "a model that transformers knows, with weights that fit it",
            said or type(cause).__name__,
            "Models that bring code of their own are not loaded.",
        ) from cause
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


_BATCH = 16
_FORM = 1  # raise whenever the same record would get another feature from this file
_CLOSE = 1e-4  # by which padding may move a feature of length 1
_WIDTHS = (  # names that configs have for the size of a last state, the most telling first
    "neck_hidden_sizes",
    "hidden_size",
    "d_model",
    "dim",
    "n_embd",
    "emb_dim",
    "hidden_sizes",
    "hidden_dim",
)


@dataclass(frozen=True)
class _FolderEncoder(ABC):
    """What is the same for texts and pictures.

    Attributes
    ----------
    directory : path
        With ``config.json`` and weights as safetensors. Nothing is fetched, and no code of
        the folder is run.
    """

    directory: str | Path

    files: ClassVar[tuple[str, ...]] = ("config.json",)  # beside the weights
    norm: ClassVar[float] = 1.0
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self._folder.name

    @property
    def dimension(self) -> int:
        """Numbers in one feature, by the config of the model."""
        given = [self._config.get(name) for name in _WIDTHS]
        sizes = [one[-1] if isinstance(one, list) and one else one for one in given]
        found = next((one for one in sizes if type(one) is int and one > 0), None)
        if found is None:
            raise DataError(
                str(self._folder / "config.json"),
                "the size of a hidden state (hidden_size, say)",
                "none",
                "Write an extractor of your own (veracal.neural.Extractor).",
            )
        return found

    def fingerprint(self) -> dict[str, str | int]:
        """Everything but the record that a feature depends on."""
        weights = sorted(self._folder.glob("*.safetensors*"))
        named = [self._folder / name for name in self.files]
        return {
            "name": type(self).__name__,
            "form": _FORM,
            "weights": " ".join(file_hash(path) for path in weights),
            "files": " ".join(file_hash(path) for path in named if path.exists()),
            "transformers": str(extra("transformers", "text").__version__),
            **self._settings(),
            **arithmetic_settings("text"),
        }

    @abstractmethod
    def _settings(self) -> dict[str, str | int]:
        """Settings of this extractor."""

    @cached_property
    def _folder(self) -> Path:
        return require_file("config.json", self.directory)

    @cached_property
    def _config(self) -> dict[str, Any]:
        """What the config says."""
        return read_json(self._folder / "config.json")

    def _network(self) -> Any:
        """The network, in the mode that changes nothing."""
        made_by = self._config.get("architectures") or [""]
        alone = str(made_by[0] if isinstance(made_by, list) else "").endswith("EncoderModel")
        kind = "AutoModelForTextEncoding" if alone else "AutoModel"
        return load_model(kind, self._folder).eval()

    def _tried(self, network: Any, forward: Score, rows: Array) -> Floats:
        """Features of made-up rows, or a clear error where the network takes none such.

        Some networks draw at random even now, or are others once they have seen a text of
        another length: a record's feature would depend on the company.
        """
        before = _capture_state(network)
        try:
            found = forward(rows)
        except Exception as cause:  # of all kinds, by what a network was made for
            raise self._unfit(str(cause).strip().partition("\n")[0]) from cause
        if found.shape != (len(rows), self.dimension):
            raise self._unfit(f"features of shape {found.shape[1:]}")
        if not np.isfinite(found).all():
            raise self._unfit("numbers that are not finite")
        if _capture_state(network) != before:
            raise self._unfit("one that draws at random, or remembers what it saw")
        return found

    def _unfit(self, found: str) -> DataError:
        """What is wrong with a network."""
        told = ", ".join(f"{name}={value}" for name, value in self._settings().items())
        return DataError(
            str(self._folder),
            f"an encoder that makes {self.dimension} numbers of a record, with {told}",
            found,
            "Take another folder or other settings.",
        )


def _capture_state(network: Any) -> tuple[Any, ...]:
    """Whatever a forward pass might leave behind: generators, buffers, plain attributes."""
    torch, digest = extra("torch", "text"), hashlib.sha256()
    for layer in network.modules():
        for name, value in (*layer._buffers.items(), *vars(layer).items()):
            if isinstance(value, torch.Tensor):
                digest.update(value.detach().to(torch.complex128).numpy().tobytes())
            elif isinstance(value, str | int | float | bool | tuple | None):
                digest.update(f"|{name}={value!r}".encode())
    legacy = np.random.get_state(legacy=True)  # noqa: NPY002 - to see that nobody drew from it
    drawn = (torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(legacy))
    return digest.digest(), *drawn


@dataclass(frozen=True)
class TextEncoder(_FolderEncoder):
    """Mean of the last states of tokens, scaled to length 1, by any encoder of texts.

    Attributes
    ----------
    directory : path
        With ``tokenizer.json`` beside ``config.json`` and weights as safetensors, as
        ``save_pretrained`` leaves them.
    max_tokens : int
        Longer texts are cut here; 8 to 512, and no more than the model has places.

    Guarantees
    ----------
    Those of :func:`veracal.neural.extract`. A model for which padding changes a feature,
    as it may where masks mean something else, is given one text at a time, unpadded.
    """

    max_tokens: int = 128

    files: ClassVar[tuple[str, ...]] = ("config.json", "tokenizer.json")
    block: ClassVar[int] = MiniLM.block

    def __post_init__(self) -> None:
        MiniLM(self.max_tokens)

    def check(self, X: Array | MappedRows, where: str) -> None:
        """Refuse anything but sentences and pairs of them."""
        MiniLM().check(X, where)

    def fingerprint(self) -> dict[str, str | int]:
        """Everything but the record that a feature depends on."""
        version = str(extra("tokenizers", "text").__version__)
        return {**super().fingerprint(), "tokenizers": version}

    def _settings(self) -> dict[str, str | int]:
        return {"max_tokens": self.max_tokens}

    def scorer(self, record: tuple[int, ...]) -> Score:
        """Load the network and its vocabulary."""
        require_file("tokenizer.json", self.directory)
        tokenizer = load_fast_tokenizer(self._folder, self.max_tokens)
        network = self._network()
        # Without a kind for the second text of a pair, a network is told of none.
        known = getattr(network.config, "type_vocab_size", 0) or 0
        kinds = "token_type_ids" in inspect.signature(network.forward).parameters
        kinds = kinds and known >= record[0]
        places = getattr(network.get_input_embeddings(), "num_embeddings", 0)
        if (most := max(tokenizer.get_vocab().values(), default=-1)) >= places:
            raise self._unfit(f"{places} embeddings and a token with the number {most}")

        def forward(rows: Array) -> Floats:
            return scale_to_unit_ball(mean_token_states(network, rows, kinds=kinds))

        def alone(row: Array) -> Floats:
            text = row[None, :, : row[2].sum()]
            means = mean_token_states(network, text, kinds=kinds, padded=False)
            return scale_to_unit_ball(means).reshape(-1)

        lengths = np.array([self.max_tokens, 1, self.max_tokens // 2, 2, self.max_tokens])
        rng = np.random.default_rng(0)
        made_up = synthetic_tokens(lengths, self.max_tokens, places, rng)
        by_itself = self._tried(network, lambda rows: np.stack([*map(alone, rows)]), made_up)
        try:
            gap = np.abs(self._tried(network, forward, made_up) - by_itself).max()
        except DataError:  # it does not take such a mask
            gap = np.inf
        if gap <= _CLOSE:
            return build_text_scorer(forward, tokenizer, self.max_tokens, self.dimension)

        def score(rows: Array) -> Floats:
            features = np.zeros((len(rows), self.dimension), np.float32)
            for feature, row in zip(features, rows.tolist(), strict=True):
                text = tokenizer.encode(*row)
                if text.ids:
                    feature[:] = alone(pad_tokens(text, len(text.ids)))
            return features

        return score


@dataclass(frozen=True)
class ImageEncoder(_FolderEncoder):
    r"""Mean of the last states or the last feature map, scaled to length 1, of any encoder.

    Bytes b become :math:`(b / 255 - \mu) / \sigma` with the figures of
    ``preprocessor_config.json``, or 0.5 and 0.5 where there is none, a gray picture three equal
    channels, and every picture a square by bilinear interpolation with antialiasing; sides are
    not kept in proportion.

    Attributes
    ----------
    directory : path
        With ``config.json`` and weights as safetensors, as ``save_pretrained`` leaves them.
    pixels : int, optional
        Side of the square that the network sees; by default what its config says
        (``image_size``), or 224.
    """

    pixels: int | None = None

    files: ClassVar[tuple[str, ...]] = ("config.json", "preprocessor_config.json")
    block: ClassVar[int] = _BATCH

    def __post_init__(self) -> None:
        if self.pixels is not None:
            _checks.whole(pixels=self.pixels)

    def check(self, X: Array | MappedRows, where: str) -> None:
        """Refuse anything but bytes of pictures."""
        EfficientNetLite0().check(X, where)

    def _settings(self) -> dict[str, str | int]:
        return {"pixels": self._side}

    @property
    def _side(self) -> int:
        found = self._config.get("image_size", 224) if self.pixels is None else self.pixels
        if isinstance(found, list) and len(set(found)) == 1:
            (found,) = set(found)
        if type(found) is not int:
            raise DataError(
                str(self._folder / "config.json"),
                "an image_size for squares",
                repr(found),
                "Give pixels=..., the side that pictures are to have.",
            )
        return found

    def scorer(self, record: tuple[int, ...]) -> Score:
        """Load the network, for pictures of one shape."""
        torch = extra("torch", "text")
        side, (factor, mean, std) = (self._side, self._side), self._scaling()
        network = self._network()

        def forward(rows: Array) -> Floats:
            pictures = torch.from_numpy(rows if rows.ndim == 4 else rows[..., None])
            scaled = pictures.permute(0, 3, 1, 2).to(torch.float32) * factor
            if scaled.shape[2:] != side:
                scaled = torch.nn.functional.interpolate(
                    scaled, size=side, mode="bilinear", antialias=True
                )
            colored = ((scaled.expand(-1, 3, -1, -1) - mean) / std).contiguous()
            with full_precision(), torch.inference_mode():
                last = network(pixel_values=colored).last_hidden_state
                pooled: Floats = last.mean((2, 3) if last.ndim == 4 else 1).numpy()
            return scale_to_unit_ball(pooled)

        rng = np.random.default_rng(0)
        made_up = rng.integers(0, 256, (_BATCH, *record), np.uint8)
        self._tried(network, forward, made_up[:2])
        return each_by_itself(forward, made_up)

    def _scaling(self) -> tuple[float, Any, Any]:
        """What bytes are multiplied by, and mean and spread of each channel after that."""
        torch, path = extra("torch", "text"), self._folder / "preprocessor_config.json"
        told = read_json(path) if path.exists() else {}
        factor = told.get("rescale_factor", 1 / 255) if told.get("do_rescale", True) else 1.0
        plain = {"image_mean": 0.0, "image_std": 1.0}
        try:
            given = [
                (told.get(name) or [0.5] * 3) if told.get("do_normalize", True) else [one] * 3
                for name, one in plain.items()
            ]
            mean, std = (torch.tensor(one, dtype=torch.float32).view(3, 1, 1) for one in given)
            return float(factor), mean, std
        except (TypeError, ValueError, RuntimeError) as cause:
            raise DataError(
                str(path),
                "three numbers for each of image_mean and image_std",
                "others",
                "Save it anew.",
            ) from cause
