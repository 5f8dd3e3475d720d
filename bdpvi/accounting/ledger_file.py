"""The ledger's file: what its lines say, and how far they prove it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from bdpvi import _validate
from bdpvi.accounting import chain
from bdpvi.accounting.chain import Chain
from bdpvi.types import Budget

_FORMAT = 1


@dataclass(frozen=True)
class Charge:
    """One release: ``draws`` samples at ``temperature``.

    Attributes:
        draws: number of samples.
        temperature: τ that they were drawn at.
        from_data: whether the temperature was found from the training data. It then says something
            of them itself, so no worst-case guarantee holds for anything released with it.
    """

    draws: int
    temperature: float
    from_data: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", _validate.positive_int("draws", self.draws))
        object.__setattr__(self, "temperature", _validate.positive("temperature", self.temperature))
        if not isinstance(self.from_data, bool):
            raise ValueError(f"from_data must be True or False, got {self.from_data!r}")


class Book(NamedTuple):
    """What a ledger says.

    Attributes:
        budget: what may be spent in all, if that was decided.
        charges: in the order they were made.
        binding: digest of the fit.
        file: the lines; what they do not prove is in its ``rest``.
    """

    budget: Budget | None
    charges: tuple[Charge, ...]
    binding: str = ""
    file: Chain = Chain((), "", (), "")


def content(binding: str, budget: Budget | None, charges: Sequence[Charge]) -> bytes:
    """Return a whole file."""
    header = {"format": _FORMAT, "fit": binding, "budget": asdict(budget) if budget else None}
    return chain.links(header, *map(asdict, charges))


def follow(path: Path, binding: str | None) -> Book:
    """Return what the file proves.

    Raises:
        ValueError: if that is not even its first line, or if that names another fit.
    """
    found = chain.follow(path.read_bytes())
    charges: list[Charge] = []
    number = 1
    try:
        if not found.said:
            raise ValueError(found.why or "it is empty")
        header, *said = found.said
        if header["format"] != _FORMAT:
            raise ValueError(f"it has format {header['format']!r}, not {_FORMAT}")
        made_for, kept = str(header["fit"]), header["budget"]
        budget = None if kept is None else Budget(**kept)
        for one in said:
            number += 1
            charges.append(Charge(**one))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{path}, line {number}, cannot be used: {error}. Nothing in the file counts as "
            "proven: put back the newest copy of it, or fit again"
        ) from error
    if binding not in (None, made_for):
        raise ValueError(
            f"{path} was not made for {path.parent / 'fit.json'} as it is: one of the two was "
            "changed or exchanged. Put back the one that belongs to the other, or fit again"
        )
    return Book(budget, tuple(charges), made_for, found)


_WRITTEN = re.compile(
    rb'\{"draws": (\d{1,15}), "temperature": ([0-9.e+-]{1,30}), ("from_data": f)?'
)


def torn(rest: Sequence[bytes]) -> tuple[Charge, ...]:
    """Return the charge of a last line that was cut off, if what is left of it says it all."""
    found = _WRITTEN.match(rest[0]) if len(rest) == 1 and rest[0][-1:] != b"\n" else None
    try:
        return (Charge(int(found[1]), float(found[2]), found[3] is None),) if found else ()
    except ValueError:
        return ()
