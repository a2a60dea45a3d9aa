"""Forms of published collections of images."""

from collections.abc import Sequence

from veracal.data.readers.images import HIDDEN, ImageForm
from veracal.data.readers.pixels import Resize

_PART = r"(?:chest_xray/)?(?P<part>train|test|val)"
_VIEW = r"-\d+(?:-\d+)?\.jpe?g"

CHEST_XRAY = ImageForm(
    classes=("normal", "bacterial", "viral"),
    height=128,
    width=128,
    mode="grey",
    patterns=(
        _PART + r"/(?P<label>NORMAL)/(?P<unit>(?:NORMAL2-)?IM-\d+)" + _VIEW,
        _PART + r"/PNEUMONIA/(?P<unit>person\d+)_(?P<label>bacteria|virus)_\d+(?:_\d+)?\.jpe?g",
    ),
    aliases={"NORMAL": "normal", "bacteria": "bacterial", "virus": "viral"},
    resize="stretch",
    formats=("JPEG",),
)
"""Chest X-rays of children (Kermany et al. 2018), as Kaggle and others lay them out.

The unit is the person, as far as the names tell. A person number that occurs with both
kinds of pneumonia is taken for one person, since nothing says that it is not; the two
series of healthy children, IM and NORMAL2-IM, are numbered on their own.
"""


def sun397(
    classes: Sequence[str], *, height: int = 224, width: int = 224, resize: Resize = "crop"
) -> ImageForm:
    """Form of SUN397 (Xiao et al. 2010), as its archive is laid out.

    Parameters
    ----------
    classes : sequence of str
        As ``ClassName.txt`` writes them, such as ``/a/abbey``; see :func:`read_names`.
    height, width, resize
        As of :class:`ImageForm`.
    """
    return ImageForm(
        classes=tuple(classes),
        height=height,
        width=width,
        patterns=(r"(?:SUN397/)?(?P<listed>(?P<label>[a-z]/.+)/sun_[a-z]+\.jpg)",),
        aliases={name.strip("/"): name for name in classes if name.strip("/") != name},
        resize=resize,
        ignore=(*HIDDEN, r"(?:SUN397/)?[^/]*\.txt"),
        # Some of its files are named .jpg and are not.
        formats=("JPEG", "PNG", "GIF", "BMP"),
    )


def food101(
    classes: Sequence[str], *, height: int = 224, width: int = 224, resize: Resize = "crop"
) -> ImageForm:
    """Form of Food-101 (Bossard et al. 2014), as its archive is laid out.

    Parameters
    ----------
    classes : sequence of str
        As ``meta/classes.txt`` writes them, such as ``apple_pie``; see :func:`read_names`.
    height, width, resize
        As of :class:`ImageForm`.
    """
    return ImageForm(
        classes=tuple(classes),
        height=height,
        width=width,
        patterns=(r"(?:food-101/)?images/(?P<listed>(?P<label>[^/]+)/\d+)\.jpg",),
        resize=resize,
        ignore=(*HIDDEN, r"(?:food-101/)?(?:meta/.*|README\.txt|license_agreement\.txt)"),
    )
