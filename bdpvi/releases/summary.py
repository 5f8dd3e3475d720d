"""A release as a table of coefficients: estimates, intervals, ratios, and what they omit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpvi._ground.outputs import one_line
from bdpvi.releases.estimate import BASE, HIDDEN, LEFT_OUT, POOLED, SHARE

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 700.0


@dataclass(frozen=True, kw_only=True)
class Coefficient:
    """One row of a summary; ratios are exponentials, (estimate, low, high).

    Attributes:
        name: name of the feature.
        mean, sd, low, high: of the coefficient, per public scale of the feature.
        positive: P(coefficient > 0). It, ``sd``, ``low`` and ``high`` are None where there is no
            interval: for a base level, for one left out (its mean is its column's), and for a
            release of few draws without a posterior.
        privacy: share of the sd due to privacy noise, None if unknown.
        scale: units of the raw column in one public scale; 1 if there is none.
        note: such as that it is the base level, left out, or dominated by privacy noise; or "".
    """

    name: str
    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    positive: float | None = None
    privacy: float | None = None
    scale: float = 1.0
    note: str = ""

    @property
    def used(self) -> bool:
        """Whether the model has it: it is neither a base level nor left out."""
        return self.note not in (BASE, LEFT_OUT)

    @property
    def measured(self) -> bool:
        """Whether it is used, and not dominated by privacy noise."""
        return self.used and not self.note.startswith(HIDDEN)

    def ratio(self, per_unit: bool = False) -> tuple[float, float | None, float | None]:
        """Return the ratio of odds or rates, per public scale or per unit of the raw column."""

        def of(value: float | None) -> float | None:
            return None if value is None else math.exp(min(value / by, _LARGEST))

        by = self.scale if per_unit else 1.0
        middle = of(self.mean)
        assert middle is not None
        return middle, of(self.low), of(self.high)


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
    """

    coefficients: tuple[Coefficient, ...]
    level: float
    ratio: str
    reliable: bool | None
    reason: str
    guarantee: str
    noise: tuple[float, float, float] | None = None
    odds: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, ratios included."""
        rows = []
        for coefficient in self.coefficients:
            row = asdict(coefficient)
            if self.ratio:
                row |= {
                    "ratio": coefficient.ratio(),
                    "ratio_per_unit": coefficient.ratio(per_unit=True),
                }
            rows.append(row)
        return asdict(self) | {"coefficients": rows}

    def to_frame(self) -> pd.DataFrame:
        """Return the coefficients as a frame, one row for each name."""
        import pandas as pd

        rows = []
        for coefficient in self.coefficients:
            row = asdict(coefficient)
            for per, unit in (("", False), ("_per_unit", True)) if self.ratio else ():
                kinds = ("ratio", "ratio_low", "ratio_high")
                values = coefficient.ratio(per_unit=unit)
                row |= {f"{kind}{per}": v for kind, v in zip(kinds, values, strict=True)}
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
            [row.name + f" ({BASE})" * (row.note == BASE) for row in rows],
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

    def __str__(self) -> str:
        units = any(coefficient.scale != 1 for coefficient in self.coefficients)
        ends = ["from", "to"] if self._has_intervals else []
        share = ["privacy"] if self._shares else []
        head = ["", "mean", *(["sd", *ends, "P(> 0)", *share] if ends else [])]
        if self.odds and self.ratio:
            head += [self.ratio, *ends]
            head += ["per unit", *ends] if units else []
        head.append("")
        lines, out = [head], []
        for coefficient in self.coefficients:
            if coefficient.note == LEFT_OUT:
                out.append(one_line(coefficient.name))
                continue
            cells = (
                [""] * (len(head) - 2)
                if coefficient.note == BASE
                else self._cells(coefficient, units)
            )
            line = [one_line(coefficient.name), *cells, one_line(coefficient.note)]
            if coefficient.note == POOLED and line[1:] == lines[-1][1:]:
                line[0] = f"{lines.pop()[0]}, {line[0]}"
            lines.append(line)
        widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(head))]
        table = [
            "  ".join(
                cell.ljust(width) if place in (0, len(head) - 1) else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=False))
            ).rstrip()
            for line in lines
        ]
        said = [self._trust(), *table]
        if out:
            said.append(f"Left out, too few records have them for this ε: {', '.join(out)}")
        if self.noise is not None:
            middle, low, high = self.noise
            said.append(f"sd of the target's noise: {middle:.3g}, from {low:.3g} to {high:.3g}")
        if self.reason:
            said.append(one_line(self.reason[0].upper() + self.reason[1:]))
        return "\n".join([*said, one_line(self.guarantee)])

    def _cells(self, one: Coefficient, units: bool) -> list[str]:
        known = [one.mean, one.sd, one.low, one.high]
        cells = [f"{v:.3g}" for v in known if v is not None]
        if one.positive is not None:
            privacy = "" if one.privacy is None else f"{100 * one.privacy:.0f} %"
            cells += [f"{one.positive:.3f}", *([privacy] if self._shares else [])]
        if self.odds and self.ratio:
            cells += [f"{v:.3g}" for v in one.ratio() if v is not None]
            per_unit = one.ratio(per_unit=True) if units else ()
            cells += [f"{v:.4g}" for v in per_unit if v is not None]
        return cells
