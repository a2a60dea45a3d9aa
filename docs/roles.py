"""Turn the reStructuredText roles of docstrings, which the site does not know, into code."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|attr|mod|data|exc|math):`~?([^`]+)`")
FORMULA = re.compile(r"^( *)\.\. math::[ \n]*(.+?)(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Roles(griffe.Extension):
    """Applied to every docstring as it is collected."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = FORMULA.sub(r"\1```text\n\1\2\n\1```", text)
