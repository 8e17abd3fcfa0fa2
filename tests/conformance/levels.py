"""What a test of this suite says of itself: the section it holds the runtime to, and how binding that is.

The first line of the test's docstring is the requirement, in the specification's words where they are short enough.
``tests/conformance/report.py`` makes the table of docs/conformance.md from these.  What is binding without the word, such
as a property of config.json, is a MUST by runtime.md "Create": all properties MUST be applied.
"""

from __future__ import annotations

import pytest


def must(section: str) -> pytest.MarkDecorator:
    return pytest.mark.conforms(section, level="MUST")


def should(section: str) -> pytest.MarkDecorator:
    return pytest.mark.conforms(section, level="SHOULD")
