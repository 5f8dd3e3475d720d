"""The losses of each record from each fit of a table, kept while the fit's charges count. Secret.

A Bayesian ε covers everything released from a table, record by record, so the losses outlive the
fit: in memory with a ledger in memory, or beside a ledger's file, one file for each fit, in a
folder that only its owner can read. They are stored before the fit's first charge.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bdpvi._ground import schema, store, validate
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.ledger import Ledger

FORMAT = 1
_NEEDED, _OPTIONAL = ("ids", "r", "b2"), ("counts", "error", "marks")
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, eq=False)
class RecordLosses:
    """Each record's losses from draws of one fit.

    Attributes:
        panels: the fit's panels.
        records: N, the number of training records.
        roundings: θ of one draw (:mod:`bdpvi.bayesian.neighbours.rounding`), by temperature.
        made: digest of the model, guide and data. Fits with the same digest and pairs count as one;
            "" if unknown.
        purchases: digests of the charges for private preprocessing of its columns, see
            :attr:`bdpvi.privacy.entry.Entry.purchase`.
    """

    panels: tuple[Panel, ...]
    records: int
    roundings: Mapping[float, float]
    made: str = ""
    purchases: tuple[str, ...] = ()

    def same(self, other: RecordLosses) -> bool:
        """Return whether both fits are the same function of the same data."""
        mine, its = tensors_of(self.panels), tensors_of(other.panels)
        return bool(self.made) and self.made == other.made and mine.keys() == its.keys() and all(
            torch.equal(value, its[name]) for name, value in mine.items()
        ) and all(
            (a.largest, a.influence) == (b.largest, b.influence)
            for a, b in zip(self.panels, other.panels, strict=True)
        )  # fmt: skip

    def keep(self, ledger: Ledger, name: str) -> None:
        """Store them for a fit; call it under the ledger's lock, before draws are charged.

        Raises:
            OSError: if the file cannot be written.
        """
        before = ledger.losses.get(name)
        if ledger.path is not None:
            known = before is not None and self.roundings.keys() <= before.roundings.keys()
            if not (known and file_of(ledger.path, name).exists()):
                _write(file_of(ledger.path, name), ledger.id, name, self)
        ledger.losses[name] = self


@dataclass(frozen=True, kw_only=True)
class _About:
    """The content of a file apart from its tensors; names as in :class:`RecordLosses`."""

    format: int = FORMAT
    ledger: str
    name: str
    made: str
    records: int
    purchases: tuple[str, ...]
    roundings: Mapping[str, float]
    largest: Mapping[str, float | None]
    influence: Mapping[str, Influence] = field(default_factory=dict)


def file_of(ledger: Path, name: str) -> Path:
    """Return the file with the losses of a fit, in a secret folder beside the ledger's file.

    >>> file_of(Path("people.jsonl"), "5a").as_posix()
    'people.jsonl.losses/5a'
    """
    return ledger.with_name(f"{ledger.name}.losses") / name


def keep_beside(ledger: Ledger, path: Path) -> None:
    """Write the losses of a ledger in memory beside the file that it is about to move to."""
    for name, losses in ledger.losses.items():
        _write(file_of(path, name), ledger.id, name, losses)


def losses_of_fit(ledger: Ledger, name: str, *temperatures: float) -> RecordLosses:
    """Return a fit's losses.

    Args:
        ledger: ledger of the table.
        name: id of the fit.
        temperatures: temperatures of the charged draws.

    Raises:
        ValueError: if the file, which it names, is missing, of another fit or changed.
    """
    result = ledger.losses.get(name)
    if result is None or not {*temperatures} <= result.roundings.keys():
        if ledger.path is None:
            raise ValueError(
                f"no Bayesian total is known: the costs per record of fit {name} were not kept "
                "with its charges, which another process made"
            )
        file = file_of(ledger.path, name)
        try:
            result = _read(file.read_bytes(), ledger.id, name)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"no Bayesian total is known: {file}, with the costs per record of fit {name}, "
                f"cannot be used: {validate.why(error)}. Put it back, or load that fit, which "
                "writes it again"
            ) from error
        if not {*temperatures} <= result.roundings.keys():
            raise ValueError(
                f"no Bayesian total is known: {file} is an old copy that lacks a temperature of "
                f"fit {name}. Put the newest one back, or load that fit, which writes it again"
            )
        ledger.losses[name] = result
    return result


def tensors_of(panels: tuple[Panel, ...]) -> dict[str, Tensor]:
    """Return the tensors of panels, by their names in files."""
    found: dict[str, Tensor | None] = {}
    for panel in panels:
        values = panel.ids, panel.pairs.r, panel.pairs.b2, panel.counts, panel.error, panel.marks
        for name, value in zip((*_NEEDED, *_OPTIONAL), values, strict=True):
            found[f"panels.{panel.kind}.{name}"] = value
    return {name: value.contiguous().cpu() for name, value in found.items() if value is not None}


def names_of(kinds: Mapping[str, Any], there: Mapping[str, Tensor]) -> set[str]:
    """Return the tensor names for panels of these kinds, with optional ones that are ``there``."""
    optional = {f"panels.{kind}.{name}" for kind in kinds for name in _OPTIONAL}
    return {f"panels.{kind}.{name}" for kind in kinds for name in _NEEDED} | optional & set(there)


def panel_of(
    tensors: Mapping[str, Tensor],
    kind: str,
    largest: float | None,
    influence: Influence | None,
    width: int | None = None,
) -> Panel:
    """Return the panel of a kind.

    Args:
        tensors: as :func:`tensors_of` returns them.
        kind: "remove" or "add".
        largest, influence: attributes of the panel.
        width: the most columns that pairs may have.

    Raises:
        ValueError: if a tensor, which it names, has a wrong type, shape or value.
    """
    ids, r, b2 = (tensors[f"panels.{kind}.{name}"] for name in _NEEDED)
    if ids.dtype != torch.int64 or ids.ndim != 1:
        raise ValueError(
            f"panels.{kind}.ids must be int64 (m,), got {ids.dtype} {tuple(ids.shape)}"
        )
    if len(ids.unique()) != len(ids) or bool((ids < 0).any()):
        raise ValueError(f"panels.{kind}.ids must be unique and at least 0")
    for name, value in (("r", r), ("b2", b2)):
        fits = value.ndim == 2 and 1 <= value.shape[1] <= (width or value.shape[1])
        if value.dtype != torch.float64 or not fits:
            raise ValueError(
                f"panels.{kind}.{name} must be float64 (m, 1 … {width}), got {value.dtype} "
                f"{tuple(value.shape)}"
            )
    counts, error, marks = (tensors.get(f"panels.{kind}.{name}") for name in _OPTIONAL)
    if counts is not None and counts.dtype != torch.int64:
        raise ValueError(f"panels.{kind}.counts must be int64, got {counts.dtype}")
    if error is not None:
        if error.dtype != torch.float64 or error.shape != ids.shape:
            raise ValueError(
                f"panels.{kind}.error must be float64 {tuple(ids.shape)}, got {error.dtype} "
                f"{tuple(error.shape)}"
            )
        validate.every(f"panels.{kind}.error", error, (error >= 0) & (error <= 1), "lie in [0, 1]")
    if marks is not None and (marks.dtype, marks.shape) != (torch.int64, (len(ids), 2)):
        raise ValueError(
            f"panels.{kind}.marks must be int64 {(len(ids), 2)}, got {marks.dtype} "
            f"{tuple(marks.shape)}"
        )
    if influence is not None and influence.columns != r.shape[1]:
        raise ValueError(f"influence.{kind}.columns must be {r.shape[1]}, got {influence.columns}")
    pairs = GaussianPairs(r, b2)
    return Panel(kind, ids, pairs, largest, counts, influence=influence, error=error, marks=marks)


def _write(file: Path, ledger: str, name: str, losses: RecordLosses) -> None:
    about = _About(
        ledger=ledger,
        name=name,
        made=losses.made,
        records=losses.records,
        purchases=losses.purchases,
        roundings={repr(tau): theta for tau, theta in losses.roundings.items()},
        largest={panel.kind: panel.largest for panel in losses.panels},
        influence={panel.kind: panel.influence for panel in losses.panels if panel.influence},
    )
    metadata = {"about": json.dumps(schema.to_json(about))}
    content = save(tensors_of(losses.panels), metadata)
    store.make_folder(file.parent)
    store.write(file, hashlib.sha256(content).digest() + content)


def _read(file: bytes, ledger: str, name: str) -> RecordLosses:
    """Return the losses that :func:`_write` wrote; any other content is a ValueError."""
    digest, content = file[:_DIGEST], file[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("it was changed or cut off")
    size = int.from_bytes(content[:8], "little")
    try:
        written = json.loads(content[8 : 8 + size])["__metadata__"]["about"]
        tensors = dict(load(content))
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"it holds no losses: {error}") from error
    about = schema.loads(_About, written.encode())
    if about.format != FORMAT or (about.ledger, about.name) != (ledger, name):
        raise ValueError("it is of another fit, ledger or version")
    panels = tuple(
        panel_of(tensors, kind, largest, about.influence.get(kind))
        for kind, largest in about.largest.items()
    )
    roundings = {float(tau): theta for tau, theta in about.roundings.items()}
    return RecordLosses(panels, about.records, roundings, about.made, about.purchases)
