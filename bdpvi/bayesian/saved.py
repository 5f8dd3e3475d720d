"""The checked content of a saved fit's files: any other content is a ValueError."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from bdpvi._ground import schema, validate
from bdpvi._ground.outputs import several
from bdpvi.bayesian.accounting import record_losses
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.inference.svi import Convergence
from bdpvi.noise.batches import BatchPlan
from bdpvi.privacy.conceivable import Influence

FORMAT = 7


@dataclass(frozen=True, kw_only=True)
class LedgerPlace:
    """A ledger's place when a fit was saved.

    Attributes:
        path: path on this machine.
        from_here: path relative to the fit's folder.
    """

    path: str
    from_here: str


@dataclass(frozen=True, kw_only=True)
class About:
    """The JSON part of a saved fit.

    Attributes:
        format: format of the file.
        sha256: hash of the file with the fit's tensors.
        data_name, feature_names, preprocessing: as in :class:`bdpvi.Fit`.
        records: N, the size of the training data.
        name: id of the fit in the ledger.
        ledger: the ledger's place.
        guide: the guide and how its releases are priced.
        extra: JSON that the caller of ``save_fit`` added.
    """

    format: int = FORMAT
    sha256: str
    data_name: str
    feature_names: tuple[str, ...]
    preprocessing: Mapping[str, Any]
    records: int
    name: str
    ledger: LedgerPlace
    guide: OfGuide
    extra: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.feature_names:
            raise ValueError("feature_names must be of one feature or more, got none")
        validate.positive_int("records", self.records, least=0)

    @classmethod
    def parse(cls, file: bytes) -> About:
        """Read the file.

        Raises:
            ValueError: if an entry, which it names, is missing or has a wrong type or value.
        """
        content = schema.parsed(file)
        if content.get("format") != FORMAT:
            raise ValueError(
                f"format must be {FORMAT}, got {content.get('format')!r}: another version of "
                "bdpvi made it; fit again"
            )
        return schema.from_json(cls, content)


@dataclass(frozen=True, kw_only=True)
class OfGuide:
    """The additional entries of a fit of a guide.

    Attributes:
        plan, fingerprint: as in :class:`bdpvi.Fit`.
        ridge, noise_scale, grid: settings of the guide.
        accounting: how its releases are priced.
        largest: bound for every conceivable record, by kind of panel, or None.
        influence: by kind, how far any conceivable record moves the Gaussian, if known.
        one_hot: setting of the model, if it was given.
    """

    plan: BatchPlan
    fingerprint: str
    ridge: float
    noise_scale: float | None
    grid: float
    accounting: Accounting
    largest: Mapping[str, float | None]
    influence: Mapping[str, Influence] = field(default_factory=dict, metadata={"absent": {}})
    one_hot: tuple[tuple[int, ...], ...] | None = field(default=None, metadata={"absent": None})

    def __post_init__(self) -> None:
        validate.non_negative("ridge", self.ridge)
        for name in ("grid", "noise_scale"):
            if (value := getattr(self, name)) is not None:
                validate.positive(name, value)
        if not self.largest or not set(self.largest) <= {"remove", "add"}:
            raise ValueError(f"largest must be of remove or add, got {list(self.largest)!r:.80}")
        for kind, value in self.largest.items():
            if value is not None:
                validate.positive(f"largest.{kind}", value)
        if not set(self.influence) <= set(self.largest):
            raise ValueError(
                f"influence must be of {list(self.largest)}, got {self.influence!r:.80}"
            )


@dataclass(frozen=True, eq=False)
class Numbers:
    """The tensors of a saved fit."""

    parameters: dict[str, Tensor]
    panels: tuple[Panel, ...]
    convergence: Convergence

    @classmethod
    def parse(cls, file: bytes, about: About, guide: Guide) -> Numbers:
        """Read the file; every tensor must have the type and shape that ``guide`` requires.

        Raises:
            ValueError: if a tensor, which it names, is missing or has a wrong type, shape or value.
        """
        tensors, kinds = _tensors(file), about.guide.largest
        wanted = {f"parameters.{name}" for name in guide.constraints} | {"elbo", "gradient_norm"}
        wanted |= record_losses.names_of(kinds, tensors)
        if set(tensors) != wanted:
            wrong = sorted(set(tensors) ^ wanted)
            raise ValueError(
                f"{type(guide).__name__} and its panels need {sorted(wanted)}; {wrong} differ"
            )
        parameters = _parameters(tensors, about, guide)
        width = 2 * len(parameters["loc"]) + 1  # of pairs with proven errors, at most
        panels = tuple(
            record_losses.panel_of(
                tensors, kind, kinds[kind], about.guide.influence.get(kind), width
            )
            for kind in kinds
        )
        course = [tensors[name] for name in ("elbo", "gradient_norm")]
        floating = all(one.is_floating_point() for one in course)
        shapes = [tuple(one.shape) for one in course]
        if not floating or shapes[0] != shapes[1] or len(shapes[0]) != 1 or shapes[0] == (0,):
            raise ValueError(f"elbo and gradient_norm must be floating (steps,), got {shapes}")
        return cls(parameters, panels, Convergence(*course))


def _tensors(file: bytes) -> dict[str, Tensor]:
    try:
        return dict(load(file))
    except (SafetensorError, KeyError, RuntimeError, AssertionError) as error:
        raise ValueError(f"it holds no tensors: {error}") from error


def _parameters(tensors: Mapping[str, Tensor], about: About, guide: Guide) -> dict[str, Tensor]:
    parameters = {name: tensors[f"parameters.{name}"] for name in guide.constraints}
    like = parameters["loc"]
    if like.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"parameters.loc must be float32 or float64, got {like.dtype}")
    records = like.new_zeros(3, len(about.feature_names))
    try:
        guide.setup(records, like.new_zeros(3))
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(
            f"model does not take {several(records.shape[1], 'feature')}: {error}"
        ) from error
    for name, first in guide.initial(like).items():
        value = parameters[name]
        if value.dtype != first.dtype or value.shape != first.shape:
            raise ValueError(
                f"parameters.{name} must be {first.dtype} {tuple(first.shape)} for this model and "
                f"guide, got {value.dtype} {tuple(value.shape)}"
            )
        validate.finite(f"parameters.{name}", value)
        if not bool(guide.constraints[name].check(value).all()):
            raise ValueError(f"parameters.{name} is not {guide.constraints[name]}")
    return parameters
