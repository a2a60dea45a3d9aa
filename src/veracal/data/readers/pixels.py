"""Encoded images as arrays of bytes."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from veracal._checks import extra
from veracal._types import Array
from veracal.data.limits import Limits
from veracal.errors import DataError, LimitError

Mode = Literal["grey", "color"]
Resize = Literal["none", "stretch", "crop"]
# 8 bits a channel. Deeper images would lose their meaning in a conversion to bytes.
_KNOWN_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@contextmanager
def guarded_pillow() -> Iterator[Any]:
    """Lend Pillow's ``Image`` module while what it only warns of, a bomb, is an error."""
    pillow = extra("PIL.Image", "images")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on metadata that we do not use
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        yield pillow


def open_image(
    data: bytes, where: str, pillow: Any, *, formats: Sequence[str], limits: Limits
) -> Any:
    """Open an encoded image and check its size, without decoding it.

    Parameters
    ----------
    data : bytes
        The file.
    where : str
        What to call it in an error.
    pillow : module
        From :func:`guarded_pillow`.
    formats : sequence of str
        Pillow's names of the formats to try; no other decoder sees the bytes.
    limits : Limits
        Decoded, the image must fit ``memory_bytes``; Pillow's own limit holds as well.
    """
    try:
        image = pillow.open(io.BytesIO(data), formats=formats)
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as cause:
        raise LimitError(
            where,
            "an image within Pillow's limit on pixels",
            str(cause).partition(",")[0],
            "Nothing was decoded. Make the image smaller with a program you trust.",
        ) from cause
    except Exception as cause:  # decoders fail in many ways on hostile bytes
        raise _broken(where, formats, "another or a broken file") from cause
    limits.check("memory_bytes", image.width * image.height * 4, where)
    if image.mode not in _KNOWN_MODES or _is_deep(image, data):
        raise DataError(
            where,
            "8 bits a channel",
            f"more in an image of mode {image.mode}",
            "Convert it to 8 bits by a rule that suits what it shows.",
        )
    return image


def pixels(
    image: Any, where: str, *, mode: Mode, height: int, width: int, resize: Resize
) -> Array:
    """Decode an opened image into bytes of shape (height, width) or (height, width, 3).

    Grey is the luma of ITU-R 601. ``stretch`` scales each side on its own; ``crop`` scales
    until the image covers the declared size, then cuts equally at both ends. Both average
    bilinearly. Transparency and the orientation noted by a camera are ignored.
    """
    try:
        image = image.convert("L" if mode == "grey" else "RGB")
    except Exception as cause:  # decoders fail in many ways on hostile bytes
        raise _broken(where, (image.format or "encoded",), f"damage ({cause})") from cause
    if image.size != (width, height):
        image = _fitted(image, where, height, width, resize)
    return np.asarray(image, np.uint8)


def _is_deep(image: Any, data: bytes) -> bool:
    """Tell whether there are 16 bits a channel where Pillow, in silence, would keep 8.

    A PNG opens with its header, whose depth is byte 24 of the file; for other formats the
    decoder that Pillow chose says it.
    """
    return (image.format == "PNG" and data[24] > 8) or ";16" in repr(image.tile)


def _fitted(image: Any, where: str, height: int, width: int, resize: Resize) -> Any:
    """Bring an image to the declared size."""
    if resize == "none":
        raise DataError(
            where,
            f"{height} × {width} pixels, as declared",
            f"{image.height} × {image.width}",
            "Declare the real size, or resize='stretch' or 'crop'.",
        )
    box = None
    if resize == "crop":
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
        box = (left, top, left + width * scale, top + height * scale)
    bilinear = extra("PIL.Image", "images").Resampling.BILINEAR
    return image.resize((width, height), bilinear, box=box)


def _broken(where: str, formats: Sequence[str], found: str) -> DataError:
    """Error for bytes that are not a whole image of a declared format."""
    return DataError(
        where,
        f"a whole {' or '.join(formats)} image",
        found,
        "Fetch the file again, or remove it.",
    )
