"""Frozen Hugging Face encoders from a local folder, which turn images or texts into vectors.

Nothing is downloaded, and no code of the folder is executed.
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
import torch

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Floats
from veracal.data import Score, score_independently, translate_os_errors
from veracal.errors import DataError
from veracal.neural.precision import full_precision
from veracal.neural.pretrained import (
    MiniLM,
    arithmetic_settings,
    build_text_scorer,
    bytes_to_images,
    check_images,
    check_max_tokens,
    check_texts,
    file_hash,
    load_fast_tokenizer,
    mean_token_states,
    pad_tokens,
    resize_images,
    scale_to_unit_ball,
    synthetic_tokens,
)

_BATCH = 16
_FORMAT = 1  # increase when this file computes different features
_TOLERANCE = 1e-4  # of padding, for a feature of length 1
_WIDTHS = (  # config names of the size of the last state, the most specific first
    "neck_hidden_sizes",
    "hidden_size",
    "d_model",
    "dim",
    "n_embd",
    "emb_dim",
    "hidden_sizes",
    "hidden_dim",
)
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
LOCAL = {"local_files_only": True, "trust_remote_code": False}
_HEADS = ("classifier.", "fc.", "head.", "score.")
# Settings with which a config could download, compile or execute code.
_CODE_SETTINGS = ("attn_implementation", "_attn_implementation", "quantization_config")
_PLAIN_VALUES = (None, "eager", "sdpa")


def load_model(kind: str, directory: str | PathLike[str], **head: Any) -> Any:
    """Load a model from a folder, in float32, by an auto class of transformers ("AutoModel").

    ``head`` goes to ``from_pretrained``, such as the number of labels. A head that the folder
    does not have, or not for this number, gets random weights. Anything else that is missing or
    does not fit is an error, and so are pickled weights, which could execute any code.
    """
    folder = require_file("config.json", directory)
    _check_config(read_json(folder / "config.json"), folder)
    with translate_os_errors(folder):
        if (folder / "adapter_config.json").exists():
            raise DataError(
                str(folder),
                "the weights of a whole model",
                "adapters, which refer to another model",
                "Load that model, and wrap it with peft.PeftModel.from_pretrained.",
            )
        if not any(folder.glob("*.safetensors")):
            pickles = sorted(one.name for form in _PICKLED for one in folder.glob(form))
            raise DataError(
                str(folder),
                "weights as safetensors",
                f"{pickles[0]}, which may execute code when it is loaded"
                if pickles
                else "none",
                "Convert them with save_pretrained, on a machine where that is acceptable.",
            )
    auto_class = getattr(extra("transformers", "text"), kind)
    with translate_errors(folder), torch.random.fork_rng(devices=[]):
        model, loading_info = auto_class.from_pretrained(
            folder,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **head,
            **LOCAL,
        )
    is_base = model.base_model is model
    base = "" if is_base else f"{model.base_model_prefix}."
    optional = (f"{base}pooler.", *(_HEADS if is_base and head else ()))
    missing = [name for name in loading_info["missing_keys"] if not name.startswith(optional)]
    missing += [
        name
        for name, *_ in loading_info["mismatched_keys"]
        if not (head and is_base and name.startswith(_HEADS))
    ]
    if missing := sorted(name for name in missing if name.startswith(base)):
        raise DataError(
            str(folder),
            "weights that fit config.json",
            f"none for {missing[0]}",
            "Pass a folder with all files that save_pretrained wrote.",
        )
    return model


def _check_config(config: Any, folder: Path) -> None:
    """Reject a config that asks for kernels or other packages, at any depth."""
    for name, value in config.items():
        if isinstance(value, dict) and name not in _CODE_SETTINGS:
            _check_config(value, folder)
        elif name in _CODE_SETTINGS and (isinstance(value, dict) or value not in _PLAIN_VALUES):
            raise DataError(
                str(folder / "config.json"),
                "a model that needs no additional code",
                f"{name}",
                "Remove the setting, or save the model in full precision.",
            )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        with translate_os_errors(path):
            value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise DataError(str(path), "a JSON object", "something else", "Save it again.")
    return value


def require_file(needed: str, directory: str | PathLike[str]) -> Path:
    """Return the folder if it has the required file; else raise an error."""
    if not isinstance(directory, str | PathLike):
        raise ValueError(f"Expected the path of a folder, got {directory!r}.")
    folder = Path(directory).absolute()
    with translate_os_errors(folder):
        if not (folder / needed).is_file():
            raise DataError(
                str(folder),
                f"a folder with {needed}",
                "none" if folder.is_dir() else "no folder",
                "Pass a folder written by save_pretrained; nothing is downloaded.",
            )
    return folder


@contextmanager
def translate_errors(folder: Path) -> Iterator[None]:
    """Turn errors of transformers into a clear one, and silence its messages."""
    logging = extra("transformers", "text").logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as cause:  # of any type, depending on the file
        message = str(cause).strip().partition("\n")[0]
        raise DataError(
            str(folder),
            "a model that transformers supports, with matching weights",
            message or type(cause).__name__,
            "Models with custom code are not loaded.",
        ) from cause
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@dataclass(frozen=True)
class _FolderEncoder(ABC):
    """Common part of the text and image encoders."""

    directory: str | Path

    files: ClassVar[tuple[str, ...]] = ("config.json",)  # in addition to the weights
    norm: ClassVar[float] = 1.0
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self._folder.name

    @property
    def dimension(self) -> int:
        """Length of a feature, by the config of the model."""
        candidates = [self._config.get(name) for name in _WIDTHS]
        sizes = [one[-1] if isinstance(one, list) and one else one for one in candidates]
        width = next((one for one in sizes if type(one) is int and one > 0), None)
        if width is None:
            raise DataError(
                str(self._folder / "config.json"),
                "the size of a hidden state (hidden_size, say)",
                "none",
                "Write an extractor of your own (veracal.neural.Extractor).",
            )
        return width

    def fingerprint(self) -> dict[str, str | int]:
        """Everything except the record that a feature depends on."""
        weights = sorted(self._folder.glob("*.safetensors*"))
        named = [self._folder / name for name in self.files]
        return {
            "name": type(self).__name__,
            "form": _FORMAT,
            "weights": " ".join(file_hash(path) for path in weights),
            "files": " ".join(file_hash(path) for path in named if path.exists()),
            "transformers": str(extra("transformers", "text").__version__),
            **self._settings(),
            **arithmetic_settings(),
        }

    @abstractmethod
    def _settings(self) -> dict[str, str | int]:
        """Settings of this encoder."""

    @cached_property
    def _folder(self) -> Path:
        return require_file("config.json", self.directory)

    @cached_property
    def _config(self) -> dict[str, Any]:
        return read_json(self._folder / "config.json")

    def _network(self) -> Any:
        """The network, in evaluation mode."""
        architectures = self._config.get("architectures") or [""]
        is_encoder = str(architectures[0] if isinstance(architectures, list) else "").endswith(
            "EncoderModel"
        )
        kind = "AutoModelForTextEncoding" if is_encoder else "AutoModel"
        return load_model(kind, self._folder).eval()

    def _try_network(self, network: Any, forward: Score, rows: Array) -> Floats:
        """Features of synthetic rows, or a clear error if the network does not accept them.

        Some networks draw random numbers even in evaluation mode, or change their state after a
        text of another length: the feature of a record would then depend on the others.
        """
        state_before = _capture_state(network)
        try:
            features = forward(rows)
        except Exception as cause:  # of any type, depending on the network
            raise self._error(str(cause).strip().partition("\n")[0]) from cause
        if features.shape != (len(rows), self.dimension):
            raise self._error(f"features of shape {features.shape[1:]}")
        if not np.isfinite(features).all():
            raise self._error("NaN or infinity")
        if _capture_state(network) != state_before:
            raise self._error("one that is random or changes its state")
        return features

    def _error(self, actual: str) -> DataError:
        """Error for a network that does not fit."""
        settings_text = ", ".join(f"{name}={value}" for name, value in self._settings().items())
        return DataError(
            str(self._folder),
            f"an encoder that returns {self.dimension} numbers, with {settings_text}",
            actual,
            "Use another folder or other settings.",
        )


def _capture_state(network: Any) -> tuple[Any, ...]:
    """Everything that a forward pass could change: generators, buffers, plain attributes."""
    digest = hashlib.sha256()
    for layer in network.modules():
        for name, value in (*layer._buffers.items(), *vars(layer).items()):
            if isinstance(value, torch.Tensor):
                digest.update(value.detach().to(torch.complex128).numpy().tobytes())
            elif isinstance(value, str | int | float | bool | tuple | None):
                digest.update(f"|{name}={value!r}".encode())
    legacy = np.random.get_state(legacy=True)  # noqa: NPY002 - to detect draws from it
    generators = (torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(legacy))
    return digest.digest(), *generators


@dataclass(frozen=True)
class TextEncoder(_FolderEncoder):
    """Mean of the last token states of any text encoder, scaled to length 1.

    Attributes
    ----------
    directory : path
        With ``tokenizer.json`` beside ``config.json`` and weights as safetensors, as written by
        ``save_pretrained``.
    max_tokens : int
        Longer texts are truncated; 8 to 512, and at most the positions of the model.

    Guarantees
    ----------
    Those of :func:`veracal.neural.extract`. A model for which padding changes a feature, such
    as one with another meaning of masks, processes one text at a time, unpadded.
    """

    max_tokens: int = 128

    files: ClassVar[tuple[str, ...]] = ("config.json", "tokenizer.json")
    block: ClassVar[int] = MiniLM.block
    check = staticmethod(check_texts)

    def __post_init__(self) -> None:
        check_max_tokens(self.max_tokens)

    def fingerprint(self) -> dict[str, str | int]:
        """Everything except the record that a feature depends on."""
        version = str(extra("tokenizers", "text").__version__)
        return {**super().fingerprint(), "tokenizers": version}

    def _settings(self) -> dict[str, str | int]:
        return {"max_tokens": self.max_tokens}

    def scorer(self, record: tuple[int, ...]) -> Score:
        """Load the network and its tokenizer."""
        require_file("tokenizer.json", self.directory)
        tokenizer = load_fast_tokenizer(self._folder, self.max_tokens)
        network = self._network()
        # Token types are passed only if the network has one for each text of a pair.
        known = getattr(network.config, "type_vocab_size", 0) or 0
        token_types = "token_type_ids" in inspect.signature(network.forward).parameters
        token_types = token_types and known >= record[0]
        places = getattr(network.get_input_embeddings(), "num_embeddings", 0)
        if (most := max(tokenizer.get_vocab().values(), default=-1)) >= places:
            raise self._error(f"{places} embeddings and a token with the number {most}")

        def forward(rows: Array) -> Floats:
            return scale_to_unit_ball(mean_token_states(network, rows, token_types=token_types))

        def alone(row: Array) -> Floats:
            text = row[None, :, : row[2].sum()]
            means = mean_token_states(network, text, token_types=token_types, masked=False)
            return scale_to_unit_ball(means).reshape(-1)

        lengths = np.array([self.max_tokens, 1, self.max_tokens // 2, 2, self.max_tokens])
        rng = np.random.default_rng(0)
        synthetic = synthetic_tokens(lengths, self.max_tokens, places, rng)
        by_itself = self._try_network(
            network, lambda rows: np.stack([*map(alone, rows)]), synthetic
        )
        try:
            gap = np.abs(self._try_network(network, forward, synthetic) - by_itself).max()
        except DataError:  # it does not take such a mask
            gap = np.inf
        if gap <= _TOLERANCE:
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
    r"""Mean of the last states or last feature map of any image encoder, scaled to length 1.

    Bytes b become :math:`(b / 255 - \mu) / \sigma` with the values of
    ``preprocessor_config.json``, or 0.5 and 0.5 without that file; a gray image becomes three
    equal channels, and every image is resized to a square by bilinear interpolation with
    antialiasing, without keeping its aspect ratio.

    Attributes
    ----------
    directory : path
        With ``config.json`` and weights as safetensors, as written by ``save_pretrained``.
    pixels : int, optional
        Side of the square; by default ``image_size`` of the config, or 224.
    """

    pixels: int | None = None

    files: ClassVar[tuple[str, ...]] = ("config.json", "preprocessor_config.json")
    block: ClassVar[int] = _BATCH
    check = staticmethod(check_images)

    def __post_init__(self) -> None:
        if self.pixels is not None:
            _checks.whole(pixels=self.pixels)

    def _settings(self) -> dict[str, str | int]:
        return {"pixels": self._side}

    @property
    def _side(self) -> int:
        side = self._config.get("image_size", 224) if self.pixels is None else self.pixels
        if isinstance(side, list) and len(set(side)) == 1:
            (side,) = set(side)
        if type(side) is not int:
            raise DataError(
                str(self._folder / "config.json"),
                "an image_size for squares",
                repr(side),
                "Pass pixels=..., the side of the images.",
            )
        return side

    def scorer(self, record: tuple[int, ...]) -> Score:
        """Load the network, for images of one shape."""
        path = self._folder / "preprocessor_config.json"
        config = read_json(path) if path.exists() else {}
        rescaled, normalized = config.get("do_rescale", True), config.get("do_normalize", True)
        try:
            factor = float(config.get("rescale_factor", 1 / 255)) if rescaled else 1.0
            mean, std = (
                torch.tensor(values, dtype=torch.float32).view(3, 1, 1)
                for values in (
                    (config.get("image_mean") or [0.5] * 3) if normalized else [0.0] * 3,
                    (config.get("image_std") or [0.5] * 3) if normalized else [1.0] * 3,
                )
            )
        except (TypeError, ValueError, RuntimeError) as cause:
            raise DataError(
                str(path),
                "three numbers for each of image_mean and image_std",
                "other values",
                "Save it again.",
            ) from cause

        side, network = self._side, self._network()

        def forward(rows: Array) -> Floats:
            scaled = bytes_to_images(rows) * factor
            colored = resize_images(scaled, side).expand(-1, 3, -1, -1)
            colored = ((colored - mean) / std).contiguous()
            with full_precision(), torch.inference_mode():
                last = network(pixel_values=colored).last_hidden_state
                pooled: Floats = last.mean((2, 3) if last.ndim == 4 else 1).numpy()
            return scale_to_unit_ball(pooled)

        rng = np.random.default_rng(0)
        synthetic = rng.integers(0, 256, (_BATCH, *record), np.uint8)
        self._try_network(network, forward, synthetic[:2])
        return score_independently(forward, synthetic)
