"""Convert reStructuredText roles and formulas in docstrings to Markdown for the site."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|attr|mod|data|exc|math):`~?([^`]+)`")
FORMULA = re.compile(r"^( *)\.\. math::[ \n]*(.+?)(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Roles(griffe.Extension):
    """A griffe extension that converts each docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = FORMULA.sub(r"\1```text\n\1\2\n\1```", text)
