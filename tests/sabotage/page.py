"""Write the page about the faults: what goes wrong, and what notices it.

python tests/sabotage/page.py
"""

from __future__ import annotations

from fault import HERE, faults

PAGE = HERE / "FAULTS.md"
PROSE = """\
# Faults, and what notices them

A privacy library can be wrong without a sign: its numbers look the same. So each fault counted
below is a change of the code, kept beside the tests. A program puts it into a copy of the library
and sees that a test fails:

    python tests/sabotage/run.py

There are {patches} changes. Of these, {unseen} were written from the code alone,
by somebody who had not read the tests.
At first the tests of their subjects missed {missed} of the {unseen}.
Each of the {missed} now has a test.
The other changes were chosen together with their tests, so that all are noticed says little of
faults that nobody thought of; the {missed} of {unseen} say more.

Some faults make an ε too small. Others make an interval or a table wrong, with its ε right.
Each patch in `tests/sabotage` says what goes wrong and names the test that notices it, and
`python tests/sabotage/page.py` wrote this page from them.
"""


def page() -> str:
    """Return the page, in Markdown."""
    every = faults()
    unseen = [one for one in every if one.written != "with its tests"]
    missed = [one for one in unseen if one.written.endswith("missed at first")]
    lines = [
        PROSE.format(patches=len(every), unseen=len(unseen), missed=len(missed)),
        "## Missed at first\n",
        *(
            f"- {one.what}: `{one.tests[0].rpartition('::')[2].partition('[')[0]}`"
            for one in missed
        ),
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
