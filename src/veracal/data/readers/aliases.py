"""What files write where they mean a class."""

from collections.abc import Collection, Mapping, Sequence

from veracal.data.labels import Label


def alias_problem(
    aliases: Mapping[str, Label], classes: Sequence[Label], marks: Collection[str] = ()
) -> tuple[str, str] | None:
    """Say what was expected and found where what a file writes has two meanings, or none.

    Parameters
    ----------
    aliases : mapping of str to class
        What the file writes, and the class it means.
    classes : sequence of str or int
        Each is also written as it is.
    marks : collection of str
        What the file writes where a record has no label.
    """
    if isinstance(marks, str):
        return "a tuple of marks", repr(marks)
    written = {str(label) for label in classes}
    for text, target in aliases.items():
        if target not in classes:
            return "labels that stand for declared classes", repr(target)
        if text in written:
            return "aliases that are not classes themselves", repr(text)
    for mark in marks:
        if mark in written or mark in aliases:
            return "marks of missing labels that stand for no class", repr(mark)
    return None


def coded(aliases: Mapping[str, Label], classes: Sequence[Label]) -> dict[str, int]:
    """Return the position of the class that each text means."""
    place = {label: i for i, label in enumerate(classes)}
    known = {str(label): i for label, i in place.items()}
    return known | {text: place[label] for text, label in aliases.items()}
