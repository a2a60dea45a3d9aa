"""Models of Hugging Face in a folder: nothing is fetched, and no code of theirs is run."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from veracal._checks import extra
from veracal.data.limits import no_surprises
from veracal.errors import DataError

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
_HEADS = ("classifier.", "fc.", "head.", "score.")
# Settings by which a config would have something fetched, compiled or run.
_CALLING = ("attn_implementation", "_attn_implementation", "quantization_config")
_PLAIN = (None, "eager", "sdpa")


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
    folder = folder_with("config.json", directory)
    _check_calls(written_in(folder / "config.json"), folder)
    _check_weights(folder)
    transformers, torch = extra("transformers", "text"), extra("torch", "text")
    with understood(folder), torch.random.fork_rng(devices=[]):  # for the weights of a head
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


def _check_calls(config: Any, folder: Path) -> None:
    """Refuse a config, or a part of one, that asks for kernels or for other packages."""
    for name, value in config.items():
        if isinstance(value, dict) and name not in _CALLING:
            _check_calls(value, folder)
        elif name in _CALLING and (isinstance(value, dict) or value not in _PLAIN):
            raise DataError(
                str(folder / "config.json"),
                "a model that needs no other code",
                f"{name}",
                "Take the setting out, or save the model in full precision.",
            )


def written_in(path: Path) -> dict[str, Any]:
    """What a file of JSON says."""
    try:
        with no_surprises(path):
            found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError(str(path), "settings as JSON", "something else", "Save it anew.")
    return found


def load_part(kind: str, needed: str, directory: str | PathLike[str], **settings: Any) -> Any:
    """What else there is in a folder, a tokenizer say, by the file that it is in."""
    folder, transformers = folder_with(needed, directory), extra("transformers", "text")
    with understood(folder):
        return getattr(transformers, kind).from_pretrained(folder, **settings, **_LOCAL)


def folder_with(needed: str, directory: str | PathLike[str]) -> Path:
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
def understood(folder: Path) -> Iterator[None]:
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
