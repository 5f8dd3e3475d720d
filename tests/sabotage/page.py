"""Write the page of the documentation about the faults: what could go wrong, and what notices it.

python tests/sabotage/page.py
"""

from __future__ import annotations

from pathlib import Path

from fault import Fault
from faults import FAULTS, SEEN
from unseen import MISSED, UNSEEN

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "what-could-go-wrong.md"
ROOMS = {
    "bayesian": "Bayesian accounting",
    "privacy": "Privacy: prices and ledgers",
    "noise": "Noise and coins",
    "releases": "Releases: charges, keys, draws",
    "_ground": "Files of a ledger",
    "networks": "Networks",
    "programs": "Pyro programs",
    "regression": "Private regressions",
    "models": "Models",
    "guides": "Guides",
    "tables": "Tables",
    "datasets": "Datasets: encodings and preprocessing",
    "synthesis": "Synthetic tables",
    "federated": "Federations",
    "sklearn": "scikit-learn",
    "commands": "Commands",
    "audits": "Audits",
    "bench": "Comparisons",
}
"""Rooms, in the page's order, with their headings."""
PROSE = """\
# What could go wrong

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
`tests/sabotage/faults.py` and `unseen.py` name the test for each, and
`python tests/sabotage/page.py` wrote this page from them.
"""


def page() -> str:
    """Return the page, in Markdown."""
    numbers = {"patches": FAULTS, "unseen": UNSEEN, "missed": MISSED}
    counts = {name: names(some) for name, some in numbers.items()}
    rows = [
        "part | changes | written from the code alone | missed at first",
        "--- | --- | --- | ---",
    ]
    for room, heading in ROOMS.items():
        own = [str(sum(room_of(one) == room for one in some)) for some in counts.values()]
        rows.append(" | ".join([heading, *own]))
    parts = [
        PROSE.format(**{name: len(some) for name, some in counts.items()}),
        "## By part\n",
        "\n".join([*rows, ""]),
        "## Missed at first\n",
        "\n".join([*(f"- {one.what}: {test_of(one)}" for one in MISSED), ""]),
        "## Chosen with their tests\n",
        "\n".join([*(f"- {one.what}" for one in SEEN if one.caught), ""]),
    ]
    return "\n".join(parts)


def test_of(fault: Fault) -> str:
    """Return the name of the test for a fault."""
    return f"`{next(iter(fault.caught.values()))[0].rpartition('::')[2].partition('[')[0]}`"


def names(faults: tuple[Fault, ...]) -> list[str]:
    """Return the names of the patches of some faults."""
    return [name for fault in faults for name in fault.caught]


def room_of(name: str) -> str:
    """Return the room of the first file that a patch changes."""
    text = (HERE / f"{name}.patch").read_text("utf-8")
    file = Path(text.partition("+++ b/")[2].partition("\n")[0])
    return file.parts[1] if file.parts[0] == "bdpvi" else file.parts[0]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
