"""A release as a table of coefficients: estimates, intervals, ratios, and what they omit."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bdpvi._ground.outputs import one_line
from bdpvi._ground.store import claimed
from bdpvi.releases.estimate import BASE, HIDDEN, LEFT_OUT, POOLED, SHARE

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 700.0


@dataclass(frozen=True, kw_only=True)
class Coefficient:
    """One row of a summary; ratios are exponentials, (estimate, low, high).

    Attributes:
        name: name of the feature.
        mean, sd, low, high: of the coefficient, per ``per`` units of the raw column.
        positive: P(coefficient > 0). It, ``sd``, ``low`` and ``high`` are None where there is no
            interval: for a base level, for one left out (its mean is its column's), and for a
            release of few draws without a posterior.
        privacy: share of the sd due to privacy noise, None if unknown.
        per: units of the raw column, or of a product of columns; 1 if there is none.
        note: such as that it is the base level, left out, or dominated by privacy noise; or "".
    """

    name: str
    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    positive: float | None = None
    privacy: float | None = None
    per: float = 1.0
    note: str = ""

    @property
    def used(self) -> bool:
        """Whether the model has it: it is neither a base level nor left out."""
        return self.note not in (BASE, LEFT_OUT)

    @property
    def measured(self) -> bool:
        """Whether it is used, and not dominated by privacy noise."""
        return self.used and not self.note.startswith(HIDDEN)

    @property
    def label(self) -> str:
        """Its name, with the units that it is for unless they are 1."""
        return self.name if self.per == 1 else f"{self.name} (per {self.per:g})"

    def times(self, factor: float, per: float) -> Coefficient:
        """Return the coefficient for ``factor`` times the units, which are ``per`` then."""
        known = (self.mean, self.sd, self.low, self.high)
        mean, *others = (None if one is None else factor * one for one in known)
        assert mean is not None
        sd, low, high = others
        return replace(self, mean=mean, sd=sd, low=low, high=high, per=per)

    def ratio(self) -> tuple[float, float | None, float | None]:
        """Return the ratio of odds or rates."""
        ends = (self.low, self.high)
        low, high = (None if end is None else math.exp(min(end, _LARGEST)) for end in ends)
        return math.exp(min(self.mean, _LARGEST)), low, high


def rounded(*values: float | None, width: float | None = None) -> list[str]:
    """Return numbers with the decimals of an interval of this width: two digits of its half.

    Three digits without a width. None is left out.

    >>> rounded(1.08512, 1.0809, 1.0913, width=1.0913 - 1.0809), rounded(0.123456), rounded(2.0e7)
    (['1.0851', '1.0809', '1.0913'], ['0.123'], ['2e+07'])
    """
    known = [value for value in values if value is not None]
    width = (width or 0.0) / 2
    if not 1e-9 < width < 1e5:
        return [f"{value:.3g}" for value in known]
    places = max(0, 1 - math.floor(math.log10(width)))
    if max(map(abs, known), default=0) >= 1e7:
        return [f"{value:.3g}" for value in known]
    return [f"{value:.{places}f}" for value in known]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A table of coefficients; ``str`` prints it. See :meth:`bdpvi.Release.summary`.

    Attributes:
        coefficients: in the order of the weights.
        level: coverage of the intervals.
        ratio: the meaning of exponentials of coefficients: "odds ratio", "rate ratio" or "".
        reliable: whether at least half of the used coefficients are measured and the approximations
            behind the intervals hold, for those that are measured; None without intervals, or if it
            is not known, as for models other than the library's, and for draws.
        reason: why not, and what they omit or assume.
        guarantee: the receipt in words.
        noise: standard deviation of the target's noise: estimate, low, high; or None.
        odds: whether ``str`` shows ratios.
        spread: of a mixed model the column of groups, and the standard deviation of their effects:
            estimate, low, high, and whether it is measured; or None.
    """

    coefficients: tuple[Coefficient, ...] = field(repr=False)
    level: float
    ratio: str
    reliable: bool | None
    reason: str
    guarantee: str
    noise: tuple[float, float, float] | None = None
    odds: bool = False
    spread: tuple[str, float, float, float, bool] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, ratios included."""
        rows = []
        for coefficient in self.coefficients:
            row = asdict(coefficient)
            if self.ratio:
                row["ratio"] = coefficient.ratio()
            rows.append(row)
        every = asdict(self) | {"coefficients": rows}
        return {name: one for name, one in every.items() if name != "spread" or one is not None}

    def to_frame(self) -> pd.DataFrame:
        """Return the coefficients as a frame, one row for each name."""
        import pandas as pd

        rows = []
        for coefficient in self.coefficients:
            row = asdict(coefficient)
            if self.ratio:
                kinds = ("ratio", "ratio_low", "ratio_high")
                row |= dict(zip(kinds, coefficient.ratio(), strict=True))
            rows.append(row)
        return pd.DataFrame(rows).set_index("name")

    def plot(self, path: str | Path) -> Path:
        """Draw a forest plot: estimates and intervals; needs the extra ``bdpvi[report]``."""
        from bdpvi.releases.forest import forest

        rows = [coefficient for coefficient in self.coefficients if coefficient.note != LEFT_OUT]
        ratios = self.odds and bool(self.ratio)
        trust = ", ".join(["", *self._trust().split("; ")[1:]])
        what = self.ratio if ratios else "coefficient"
        return forest(
            [row.label + f" ({BASE})" * (row.note == BASE) for row in rows],
            [row.ratio() if ratios else (row.mean, row.low, row.high) for row in rows],
            Path(path),
            faint=[row.note.startswith(HIDDEN) for row in rows],
            label=f"{what}, {100 * self.level:g} % intervals{trust}"
            if self._has_intervals
            else what,
            ratios=ratios,
        )

    @property
    def _has_intervals(self) -> bool:
        """Whether there are intervals."""
        return any(coefficient.sd is not None for coefficient in self.coefficients)

    @property
    def _shares(self) -> bool:
        """Whether privacy's share of any deviation is known: not where a guide was trained."""
        return any(coefficient.privacy is not None for coefficient in self.coefficients)

    def _trust(self) -> str:
        """Return the first line: the intervals' level, and whether they are reliable."""
        if not self._has_intervals:
            return "point estimates, without intervals"
        rows = [coefficient for coefficient in self.coefficients if coefficient.used]
        seen = sum(row.measured for row in rows)
        counted = f"{seen} of {len(rows)} coefficients are measured"
        trust = {None: "not known", True: "yes", False: "no"}[self.reliable]
        if self.reliable and seen < len(rows):
            trust = "only where measured"
        elif self.reliable is False and seen >= SHARE * len(rows):
            counted = "for a reason given below"
        told = "" if self.reliable is None and seen == len(rows) else f", {counted}"
        return f"{100 * self.level:g} % intervals; reliable: {trust}{told}"

    def rows(self) -> list[list[str]]:
        """Return the table as it is printed: the header, then a row for each coefficient."""
        ends = ["from", "to"] if self._has_intervals else []
        share = ["privacy"] if self._shares else []
        head = ["", "coefficient", *(["sd", *ends, "P(> 0)", *share] if ends else [])]
        if self.odds and self.ratio:
            head += [self.ratio, *ends]
        head.append("")
        lines = [head]
        for one in self.coefficients:
            if one.note == LEFT_OUT:
                continue
            cells = [""] * (len(head) - 2) if one.note == BASE else self._cells(one)
            line = [one_line(one.label), *cells, one_line(one.note)]
            line += [""] * (len(head) - len(line))
            if one.note == POOLED and line[1:] == lines[-1][1:]:
                line[0] = f"{lines.pop()[0]}, {line[0]}"
            lines.append(line)
        return lines

    def notes(self) -> list[str]:
        """Return what the table's reader has to know, a sentence each."""
        out = [one_line(one.name) for one in self.coefficients if one.note == LEFT_OUT]
        said = [self._trust()]
        if out:
            said.append(f"Left out, too few records have them for this ε: {', '.join(out)}")
        if self.noise is not None:
            middle, low, high = rounded(*self.noise, width=self.noise[2] - self.noise[1])
            said.append(f"sd of the target's noise: {middle}, from {low} to {high}")
        if self.spread is not None:
            column, *ends, seen = self.spread
            middle, low, high = rounded(*ends, width=ends[2] - ends[1])
            of = f"sd of the effects of {column!r}: {middle}, from {low} to {high}"
            said.append(one_line(of) + ", not measured: mostly the prior" * (not seen))
        if self.reason:
            said.append(one_line(self.reason[0].upper() + self.reason[1:]))
        return [*said, one_line(self.guarantee)]

    def __str__(self) -> str:
        lines = self.rows()
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        table = [
            "  ".join(
                cell.ljust(width) if place in (0, len(widths) - 1) else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        trust, *others = self.notes()
        return "\n".join([trust, *table, *others])

    def to_html(self) -> str:
        """Return the table and its notes as HTML."""
        head, *lines = ([escape(cell) for cell in line] for line in self.rows())
        rows = ["".join(f"<td>{cell}</td>" for cell in line) for line in lines]
        return "\n".join(
            [
                '<table class="coefficients">',
                "<thead><tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr></thead>",
                "<tbody>",
                *(f"<tr>{row}</tr>" for row in rows),
                "</tbody></table>",
                *(f"<p>{escape(note)}</p>" for note in self.notes()),
            ]
        )

    _repr_html_ = to_html

    def to_latex(self) -> str:
        """Return the table as a ``tabular`` of LaTeX, with its notes as comments."""
        rows = self.rows()
        lines = [" & ".join(map(_in_latex, line)) + r" \\" for line in rows]
        columns = "l" + "r" * (len(rows[0]) - 2) + "l"
        return "\n".join(
            [
                *(f"% {note}" for note in self.notes()),
                rf"\begin{{tabular}}{{{columns}}}",
                r"\hline",
                lines[0],
                r"\hline",
                *lines[1:],
                r"\hline",
                r"\end{tabular}",
            ]
        )

    def save(self, path: str | Path) -> Path:
        """Write a new file, by its suffix: ``.html``, ``.tex``, ``.csv``, or else a forest plot.

        Raises:
            ValueError: if the file exists.
        """
        path = Path(path)
        with claimed(path) as temporary:
            match path.suffix.lower():
                case ".html":
                    temporary.write_text(self.to_html() + "\n", encoding="utf-8")
                case ".tex":
                    temporary.write_text(self.to_latex() + "\n", encoding="utf-8")
                case ".csv":
                    self.to_frame().to_csv(temporary)
                case suffix:
                    with TemporaryDirectory() as folder:  # a figure's suffix is its format
                        drawn = self.plot(Path(folder) / f"forest{suffix}")
                        temporary.write_bytes(drawn.read_bytes())
        return path

    def _cells(self, one: Coefficient) -> list[str]:
        width = None if one.low is None or one.high is None else one.high - one.low
        cells = rounded(one.mean, one.sd, one.low, one.high, width=width)
        if one.positive is not None:
            privacy = "" if one.privacy is None else f"{100 * one.privacy:.0f} %"
            cells += [f"{one.positive:.3f}", *([privacy] if self._shares else [])]
        if self.odds and self.ratio:
            middle, low, high = one.ratio()
            width = None if low is None or high is None else high - low
            cells += rounded(middle, low, high, width=width)
        return cells


def _in_latex(text: str) -> str:
    """Return a text in LaTeX's own spelling."""
    return (
        re.sub(r"[&%$#_{}]", lambda found: "\\" + found[0], text)
        .replace("^", r"\textasciicircum{}")
        .replace("~", r"\textasciitilde{}")
        .replace(">", "$>$")
        .replace("<", "$<$")
    )
