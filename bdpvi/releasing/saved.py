"""The content of a saved fit's files, checked: a file with any other content is a ValueError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.panel import Panel
from bdpvi.accounting.settings import Accounting
from bdpvi.inference.guide import Guide
from bdpvi.inference.plan import Plan
from bdpvi.inference.svi import Convergence

FORMAT = 5


@dataclass(frozen=True)
class About:
    """The JSON part of a saved fit.

    Attributes:
        sha256: of the file with the fit's tensors.
        plan, data_name, feature_names, preprocessing, fingerprint: as of :class:`bdpvi.Fit`.
        records: N, the size of the training data.
        ridge, noise_scale, grid: of its guide.
        accounting: how its releases are priced.
        largest: for each panel, by its kind, the bound that no conceivable record exceeds, or None.
        name: what the ledger calls the fit.
        ledger: where the ledger was: its path, and that from the fit's folder.
        extra: JSON that the caller of ``save_fit`` added.
    """

    sha256: str
    plan: Plan
    data_name: str
    feature_names: tuple[str, ...]
    preprocessing: dict[str, Any]
    fingerprint: str
    records: int
    ridge: float
    noise_scale: float | None
    grid: float
    accounting: Accounting
    largest: dict[str, float | None]
    name: str
    ledger: dict[str, str]
    extra: dict[str, Any]

    @classmethod
    def parse(cls, file: bytes) -> About:
        """Read the file.

        Raises:
            ValueError: naming the entry that is missing or of a wrong type or value.
        """
        try:
            content = _object("the file", json.loads(file, parse_constant=_refused))
            if content.get("format") != FORMAT:
                raise ValueError(
                    f"format must be {FORMAT}, got {content.get('format')!r}: another version of "
                    "bdpvi made it; fit again"
                )
            plan = _object("plan", content.get("plan"))
            largest = _object("largest", content.get("largest"))
            if not largest or not set(largest) <= {"remove", "add"}:
                raise ValueError(f"largest must be of remove or add, got {_short(list(largest))}")
            names = typed(content, "feature_names", list)
            if not names or not all(type(name) is str for name in names):
                raise ValueError(f"feature_names must be strings, got {_short(names)}")
            noise_scale = content.get("noise_scale")
            accounting = _object("accounting", content.get("accounting"))
            return cls(
                sha256=typed(content, "sha256", str),
                plan=Plan(
                    steps=typed(plan, "steps", int),
                    rate=_number("rate", plan.get("rate")),
                    seed=typed(plan, "seed", int),
                    secret=typed(plan, "secret", bool),
                ),
                data_name=typed(content, "data_name", str),
                feature_names=tuple(names),
                preprocessing=typed(content, "preprocessing", dict),
                fingerprint=typed(content, "fingerprint", str),
                records=validate.positive_int("records", typed(content, "records", int)),
                grid=_positive("grid", content.get("grid")),
                ridge=validate.non_negative("ridge", _number("ridge", content.get("ridge"))),
                noise_scale=None if noise_scale is None else _positive("noise_scale", noise_scale),
                accounting=Accounting(
                    conversion=typed(accounting, "conversion", str),
                    failure_probability=_positive(
                        "failure_probability", accounting.get("failure_probability")
                    ),
                    only_reliable=typed(accounting, "only_reliable", bool),
                ),
                largest={
                    kind: None if value is None else _positive(f"largest.{kind}", value)
                    for kind, value in largest.items()
                },
                name=typed(content, "name", str),
                ledger=_places(content.get("ledger")),
                extra=typed(content, "extra", dict),
            )
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


@dataclass(frozen=True, eq=False)
class Numbers:
    """The tensors of a saved fit."""

    parameters: dict[str, Tensor]
    panels: tuple[Panel, ...]
    convergence: Convergence

    @classmethod
    def parse(cls, file: bytes, about: About, guide: Guide) -> Numbers:
        """Read the file; every tensor must be there with the type and shape that ``guide`` asks.

        Raises:
            ValueError: naming the tensor that is missing, or of a wrong type, shape or value.
        """
        try:
            tensors = load(file)
        except (SafetensorError, KeyError, RuntimeError, AssertionError) as error:
            raise ValueError(f"it holds no tensors: {error}") from error
        wanted = {f"parameters.{name}" for name in guide.constraints} | {"elbo", "gradient_norm"}
        wanted |= {f"panels.{kind}.{name}" for kind in about.largest for name in ("ids", "r", "b2")}
        wanted |= {f"panels.{kind}.counts" for kind in about.largest} & set(tensors)
        if set(tensors) != wanted:
            wrong = sorted(set(tensors) ^ wanted)
            raise ValueError(
                f"{type(guide).__name__} and its panels need {sorted(wanted)}; {wrong} differ"
            )
        parameters = _parameters(tensors, about, guide)
        width = 2 * len(parameters["loc"]) + 1  # of pairs with proven errors, at most
        panels = tuple(_panel(tensors, kind, width, about.largest[kind]) for kind in about.largest)
        course = [tensors[name] for name in ("elbo", "gradient_norm")]
        floating = all(one.is_floating_point() for one in course)
        shapes = [tuple(one.shape) for one in course]
        if not floating or shapes[0] != shapes[1] or len(shapes[0]) != 1 or shapes[0] == (0,):
            raise ValueError(f"elbo and gradient_norm must be floating (steps,), got {shapes}")
        return cls(parameters, panels, Convergence(*course))


def _parameters(tensors: Mapping[str, Tensor], about: About, guide: Guide) -> dict[str, Tensor]:
    parameters = {name: tensors[f"parameters.{name}"] for name in guide.constraints}
    like = parameters["loc"]
    if like.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"parameters.loc must be float32 or float64, got {like.dtype}")
    records = like.new_zeros(3, len(about.feature_names))
    try:
        guide.setup(records, like.new_zeros(3))
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(f"model does not take {records.shape[1]} features: {error}") from error
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


def _panel(tensors: Mapping[str, Tensor], kind: str, width: int, largest: float | None) -> Panel:
    ids, r, b2 = (tensors[f"panels.{kind}.{name}"] for name in ("ids", "r", "b2"))
    if ids.dtype != torch.int64 or ids.ndim != 1:
        raise ValueError(
            f"panels.{kind}.ids must be int64 (m,), got {ids.dtype} {tuple(ids.shape)}"
        )
    if len(ids.unique()) != len(ids) or bool((ids < 0).any()):
        raise ValueError(f"panels.{kind}.ids must be unique and at least 0")
    for name, value in (("r", r), ("b2", b2)):
        if value.dtype != torch.float64 or value.ndim != 2 or not 1 <= value.shape[1] <= width:
            raise ValueError(
                f"panels.{kind}.{name} must be float64 (m, 1 … {width}), got {value.dtype} "
                f"{tuple(value.shape)}"
            )
    counts = tensors.get(f"panels.{kind}.counts")
    if counts is not None and counts.dtype != torch.int64:
        raise ValueError(f"panels.{kind}.counts must be int64, got {counts.dtype}")
    return Panel(kind, ids, GaussianPairs(r, b2), largest, counts)


def _places(value: Any) -> dict[str, str]:
    found = _object("ledger", value)
    return {name: typed(found, name, str) for name in ("path", "from_here")}


def _object(name: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"{name} must be a JSON object, got {_short(value)}")
    return value


def typed(content: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return the entry ``name``, or raise ValueError if it is missing or of another type."""
    value = content.get(name)
    if type(value) is not kind:  # True is no number here
        raise ValueError(f"{name} must be {kind.__name__}, got {_short(value)}")
    return value


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float) or abs(value) > 1e300:  # NaN is left to who asks
        raise ValueError(f"{name} must be a number, got {_short(value)}")
    return float(value)


def _positive(name: str, value: Any) -> float:
    return validate.positive(name, _number(name, value))


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _short(value: Any) -> str:
    return repr(value)[:80]
