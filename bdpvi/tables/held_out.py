"""Held-out records, as each of two releases takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.dataset import BlockData, Dataset, People
from bdpvi.datasets.items import pair
from bdpvi.datasets.named import arguments_by_name, rows_by_name
from bdpvi.datasets.origin import declared, target_bounds
from bdpvi.models.kinds import is_regression
from bdpvi.models.reachable import check_reach
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import persons
from bdpvi.releases.released import Release
from bdpvi.tables.encoded import WITHOUT, places_of
from bdpvi.tables.prepared import with_people


class HeldOutRows(NamedTuple):
    """Features and targets of records, as a model takes them.

    Attributes:
        tensors: (N, ...) each.
        names: the model's arguments for them; () by position.
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tensors[0])

    def at(self, kept: Tensor) -> HeldOutRows:
        """Return the records of a mask, or at these positions."""
        return HeldOutRows(tuple(one[kept] for one in self.tensors), self.names)

    @property
    def made_up(self) -> HeldOutRows:
        """Two made-up records, of zeros and of ones."""
        like = (one.new_ones(1, *one.shape[1:]) for one in self.tensors)
        return HeldOutRows(tuple(torch.cat([one - one, one]) for one in like), self.names)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out records of two releases. Secret.

    Attributes:
        sides: each release, with the records as it takes them, in the same order.
        people: whose they are.
        preprocessing: how they were made.
        some: returns records by which they are known again.
        frame: raw columns, if they are those of a table.
    """

    sides: tuple[tuple[Release, HeldOutRows], ...]
    people: People
    preprocessing: Mapping[str, Any]
    some: Callable[[], Sequence[Any]]
    frame: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, a: Release, b: Release, data: Any, unit: Any, ledger: Ledger | None) -> HeldOut:
        """Return the records, given as for :func:`bdpvi.compare_models`.

        Raises:
            ValueError: if the releases have different targets, or the records lack a column, or
                there are none.
        """
        _check_targets(a, b)
        data, people, said = with_people(data, unit, ledger)
        made = _made(a, b, data)
        programs = {n: one.model for n, one in (("a", a), ("b", b)) if not is_regression(one.model)}
        for _, (tensors, _) in made.sides:
            copies = [value.detach().cpu() for value in tensors]
            check_reach(tensors, len(tensors[0]), copies, **programs)
        people = people or made.people
        people.share(ledger, parts=made.some)
        return replace(made, people=people, preprocessing=declared(made.preprocessing, said))

    def warn(self, level: int) -> None:
        """Warn where nothing says whether a person has several records."""
        if self.frame is not None:
            persons.warn_of_repeats(self.frame, self.people.unit, level + 1)
        else:
            persons.warn_of_unsaid(self.people, self.preprocessing, level + 1)


def _made(a: Release, b: Release, data: Any) -> HeldOut:
    """Return the records, with no ledger yet."""
    if isinstance(data, BlockData):
        raise ValueError("data is in blocks; give the held-out records in memory")
    by_name = [one.guide is not None and bool(one.guide.arguments) for one in (a, b)]
    if any(by_name):
        if not all(by_name):
            raise ValueError("a and b: one takes its features by name, the other a single x")
        return _by_name(a, b, data)
    table = data[0] if isinstance(data, tuple) and data else data
    if hasattr(table, "columns") and a.encoding is not None and b.encoding is not None:
        return _of_table(a, b, data)
    if not isinstance(data, Dataset):
        x, y = pair(data)
        both = isinstance(x, Tensor) and isinstance(y, Tensor)
        data = Dataset(x, y) if both else Dataset.of(x, y)
    if not len(data):
        raise ValueError("data has no held-out records; at least 1 is needed")
    sides = [
        (one, HeldOutRows((_columns(name, one, other, data), data.y)))
        for name, one, other in (("a", a, b), ("b", b, a))
    ]
    return HeldOut(_taken(sides), data.people, data.preprocessing, data.some)


def _check_targets(a: Release, b: Release) -> None:
    """Refuse releases whose targets are known to differ, or whose draws are no numbers."""
    for name, one in (("a", a), ("b", b)):
        if not isinstance(one, Release):
            raise ValueError(f"{name} must be a Release, got {type(one).__name__}")
        for site, value in one.latents.items():
            validate.finite(f"{name}.latents[{site!r}]", value)
    targets = [dict(one.preprocessing.get("target", {})) for one in (a, b)]  # type: ignore[call-overload]
    if targets[0] != targets[1]:
        raise ValueError(f"a and b have different targets: {targets[0]} and {targets[1]}")
    bounds = [target_bounds(one.model) for one in (a, b)]
    if bounds[0] != bounds[1]:
        raise ValueError(
            f"a and b have different bounds of their targets: {bounds[0]} and {bounds[1]}; their "
            "densities are of different numbers"
        )


def _columns(name: str, release: Release, other: Release, data: Dataset) -> Tensor:
    """Return the features that a release takes, in its type."""
    wanted, there = release.feature_names, data.feature_names
    nameless = there == _plain(len(there))
    x = data.x
    if wanted != there and not (
        nameless and len(wanted) == len(there) and wanted == other.feature_names
    ):
        missing = [one for one in wanted if one not in there]
        if missing or wanted == _plain(len(wanted)):
            raise ValueError(
                f"data has the features {', '.join(there)}, and {name} takes "
                f"{', '.join(wanted)}: name them alike, by feature_names= of bdpvi.Dataset.of, "
                "here and where the release is made"
            )
        x = x[:, [there.index(one) for one in wanted]]
    if x.is_floating_point():
        x = x.to(release.samples)
    return x if release.guide is None else release.guide.typed(x)


def _plain(number: int) -> tuple[str, ...]:
    """Return the names of features without names."""
    return tuple(f"x{j}" for j in range(number))


def _by_name(a: Release, b: Release, data: Any) -> HeldOut:
    """Return records with a tensor for each argument; one not finite anywhere is left out."""
    known = [arguments_by_name(getattr(one.model, "model", one.model)) for one in (a, b)]
    if isinstance(data, tuple):
        data = dict(zip(known[0], data, strict=False))
    given = [*data] if isinstance(data, Mapping) else [*getattr(data, "columns", ())]
    chosen = []
    for name, release, arguments in zip("ab", (a, b), known, strict=True):
        assert release.guide is not None
        features = [one.name for one in release.guide.arguments]
        targets = [n for n, one in arguments.items() if n in given and one.default is None]
        if missing := [one for one in features if one not in given]:
            raise ValueError(f"data has no column {missing[0]!r}, which {name} takes")
        if not targets:
            raise ValueError(f"data has no target of {name}: none of {', '.join(arguments)}")
        chosen.append((features, targets))
    if {*chosen[0][1]} != {*chosen[1][1]}:
        raise ValueError(
            f"a and b have different targets: {', '.join(chosen[0][1])} and "
            f"{', '.join(chosen[1][1])}"
        )
    used = dict.fromkeys(name for side in chosen for part in side for name in part)
    rows = rows_by_name(getattr(a.model, "model", a.model), {name: data[name] for name in used})
    values = dict(zip(rows.names, rows.source.tensors, strict=True))
    if not len(next(iter(values.values()))):
        raise ValueError("data has no held-out records; at least 1 is needed")
    sides = []
    for release, (features, targets) in zip((a, b), chosen, strict=True):
        assert release.guide is not None
        typed = [one.check(values[one.name], release.samples) for one in release.guide.arguments]
        tensors = (*typed, *(values[name] for name in targets))
        sides.append((release, HeldOutRows(tensors, (*features, *targets))))
    return HeldOut(tuple(sides), People(), {}, rows.some)


def _of_table(a: Release, b: Release, data: Any) -> HeldOut:
    """Return the rows of a table, encoded as each release has it; targets as they were written."""
    from bdpvi.datasets.cells import read_cells, read_columns  # late: they load pandas
    from bdpvi.datasets.encoding import with_text_names

    raw, y = data if isinstance(data, tuple) else (data, None)
    frame, target = with_text_names(raw), dict(a.preprocessing.get("target", {}))  # type: ignore[call-overload]
    if not len(frame):
        raise ValueError("data has no held-out records; at least 1 is needed")
    for name, one in (("a", a), ("b", b)):
        assert one.encoding is not None
        wanted = [column.name for column in one.encoding.columns]
        validate.columns(f"data, for {name}: column", wanted, [*frame.columns])
    if y is not None:
        targets = validate.numbers("y", y).double()
        validate.same_length("y", targets, "x", range(len(frame)))
    elif not target or getattr(a.model, "target", "") == "time":
        raise ValueError("data: give a pair of the table and its targets as the model takes them")
    else:
        validate.columns("target", [target["column"]], [*frame.columns])
        cells = read_cells(frame[target["column"]])
        if "positive" in target:
            yes = places_of(cells, [target["positive"]]) == 0
            targets = torch.from_numpy(np.where(cells.blank, np.nan, yes))
        elif "classes" in target:
            at = places_of(cells, target["classes"])
            targets = torch.from_numpy(np.where(at < 0, np.nan, at))
        else:
            targets = torch.from_numpy(np.array(cells.numbers))
    sides = []
    for one in (a, b):
        assert one.encoding is not None
        x = one.encoding.whole(read_columns(frame, one.encoding.types))
        sides.append((one, HeldOutRows((x.to(one.samples), targets))))
    noted = {"encoding": a.preprocessing["encoding"]}
    return HeldOut(_taken(sides), People(), noted, lambda: (frame,), frame)


def _taken(sides: list[tuple[Release, HeldOutRows]]) -> tuple[tuple[Release, HeldOutRows], ...]:
    """Return the records whose targets both models can have; tell the owner of others."""
    kept = torch.ones(len(sides[0][1]), dtype=torch.bool)
    for release, inputs in sides:
        x, y = inputs.tensors
        if y.is_floating_point():
            kept &= y.isfinite().reshape(len(y), -1).all(1)
        if (takes := getattr(release.model, "takes", None)) is not None:
            kept &= takes(x, y).to(kept.device)
    tell_owner(int((~kept).sum()), "record", WITHOUT, 6)
    return tuple((one, inputs.at(kept)) for one, inputs in sides)
