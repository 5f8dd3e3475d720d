"""Effect handlers under which a Pyro program runs for one record, inside ``torch.func.vmap``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from pyro.distributions import OrderedLogistic, stable, stable_log_prob
from pyro.ops.einsum import torch_log
from pyro.poutine.messenger import Messenger
from torch import _VF, Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    Multinomial,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)
from torch.overrides import TorchFunctionMode

from bdpvi.models.misfits import Misfit, MisfitError
from bdpvi.models.traces import subsampling

splines = sys.modules["pyro.distributions.transforms.spline"]
"""The module, whose name a function has too."""


def _unchecked(self: Distribution, value: Tensor) -> None:
    """Let every value pass: a check of a distribution made before branches on values."""


def _of_own_state(step: Callable[..., Any], inputs: Tensor, *rest: Any) -> Any:
    """Run a recurrence from a state of each record: torch adds to it in place."""
    own = torch.zeros_like(inputs).sum()
    packed = isinstance(rest[0], Tensor) and not rest[0].is_floating_point()
    before, (state, *more) = rest[:packed], rest[packed:]
    state = state + own if isinstance(state, Tensor) else tuple(one + own for one in state)
    return step(inputs, *before, state, *more)


def _safe_log(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(x.dtype).tiny).log()


def _ordered(
    self: OrderedLogistic, predictor: Tensor, cutpoints: Tensor, validate_args: bool | None = None
) -> None:
    """Make an ordered logistic distribution, as Pyro does."""
    below = torch.sigmoid(cutpoints - predictor.unsqueeze(-1))
    self.predictor = predictor.expand(below.shape[:-1])
    self.cutpoints = cutpoints.expand(below.shape)
    each = torch.cat([below[..., :1], below.diff(), 1 - below[..., -1:]], -1)
    super(OrderedLogistic, self).__init__(each, validate_args=validate_args)


def _multinomial(self: Multinomial, value: Tensor) -> Tensor:
    """Return the log-probability of counts; a class without any may have probability 0."""
    logits, value = torch.broadcast_tensors(self.logits, value)
    ways = torch.lgamma(value.sum(-1) + 1) - torch.lgamma(value + 1).sum(-1)
    impossible = (value == 0) & (logits == -torch.inf)
    result: Tensor = ways + (logits.masked_fill(impossible, 0.0) * value).sum(-1)
    return result


def _stable(alpha: Tensor, beta: Tensor, value: Tensor, coords: str) -> Tensor:
    """Return Pyro's log-density of a stable variable, without branches on its values.

    Near α = 1 and near a value of 0, where its integral fails, it is interpolated as there.
    """
    if coords == "S":  # as Pyro has it, whose tangent is of the whole
        value = torch.where(alpha == 1, value, value - beta * (torch.pi / 2 * alpha)).tan()
    width = stable_log_prob.alpha_near_one_tolerance
    near = (alpha - 1).abs() < width
    above = _stable_away(torch.where(near, 1 + width, alpha), beta, value)
    below = _stable_away(torch.full_like(alpha, 1 - width), beta, value)
    share = torch.where(near, (alpha - 1) / (2 * width) + 0.5, 0.5)
    return torch.where(near, torch.logaddexp(above + share.log(), below + (1 - share).log()), above)


def _stable_away(alpha: Tensor, beta: Tensor, value: Tensor) -> Tensor:
    """Return the log-density of a stable variable away from α = 1."""
    z = value + beta * (torch.pi / 2 * alpha).tan()
    at_zero = stable_log_prob._unsafe_alpha_stable_log_prob_at_zero(alpha, 0).exp().reciprocal()
    width = stable_log_prob.value_near_zero_tolerance_alpha * alpha / (1 - alpha).abs()
    width = width.clamp(max=stable_log_prob.value_near_zero_tolerance_density * at_zero)
    near = z.abs() < width
    above = stable_log_prob._unsafe_stable_log_prob(alpha, beta, torch.where(near, width, z))
    below = stable_log_prob._unsafe_stable_log_prob(alpha, beta, -width)
    share = torch.where(near, z / (2 * width) + 0.5, 0.5)
    return torch.where(near, torch.logaddexp(above + share.log(), below + (1 - share).log()), above)


class _Masked(TorchFunctionMode):
    """Assign where a mask is true as ``torch.where`` does, within Pyro's splines."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__bool__:  # of an assertion
            return True
        masked = len(args) > 1 and isinstance(args[1], Tensor) and args[1].dtype == torch.bool
        if masked and func is Tensor.__getitem__:  # which is assigned by the same mask
            return args[0]
        if masked and func is Tensor.__setitem__:
            target, mask, values = args
            return target.copy_(torch.where(mask, values, target))
        return func(*args, **(kwargs or {}))


def _rational(spline: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _Masked():
        return spline(*args, **kwargs)


_CELLS = tuple(
    f"{kind}{cell}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for cell in ("", "_cell")
)
_SPLINE = "_monotonic_rational_spline"
_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (Distribution, "_validate_sample", _unchecked),
    (torch_log, "safe_log", _safe_log),
    (Multinomial, "log_prob", _multinomial),
    (stable, "_stable_log_prob", _stable),
    (OrderedLogistic, "__init__", _ordered),
    (splines, _SPLINE, partial(_rational, getattr(splines, _SPLINE))),
    *((_VF, name, partial(_of_own_state, getattr(_VF, name))) for name in _CELLS),
)


@contextmanager
def out_of_place() -> Iterator[None]:
    """Replace what Pyro and torch compute in place, which vmap does not support."""
    kept = [getattr(owner, name) for owner, name, _ in _REPLACED]
    for owner, name, new in _REPLACED:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for (owner, name, _), old in zip(_REPLACED, kept, strict=True):
            setattr(owner, name, old)


def plates(
    is_records: Callable[[str, Any, bool], bool], indices: tuple[int, ...] = (0,)
) -> AbstractContextManager[None]:
    """Give every plate over records these entries, one by default, and a scale of 1.

    So a record's contribution depends neither on N nor on the batch size.

    Args:
        is_records: decides by a plate's name, its size, and whether it subsamples.
        indices: of the entries.
    """

    def one_entry(
        plain: Any,
        name: str,
        size: Any = None,
        subsample_size: Any = None,
        subsample: Any = None,
        use_cuda: Any = None,
        device: Any = None,
    ) -> tuple[int, int, Tensor | None]:
        part = subsample is not None or (subsample_size is not None and subsample_size != size)
        if is_records(name, size, part):
            found = torch.zeros(len(indices), dtype=torch.int64, device=device)
            if any(indices):  # a copy to a device would be waited for
                found = torch.tensor(indices, device=device)
            return len(indices), len(indices), found
        return plain(name, size, subsample_size, subsample, use_cuda, device)  # type: ignore[no-any-return]

    return subsampling(one_entry)


class Inside(Messenger):  # type: ignore[misc]
    """Hide the sites outside a plate, and forget them where ``pyro.markov`` counts sites."""

    def __init__(self, plate: str) -> None:
        super().__init__()
        self.plate = plate
        self.hidden: set[str] = set()

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not in_plate(msg, self.plate):
            msg["stop"] = True
            self.hidden.add(msg["name"])
            return
        scope = msg["infer"].get("_markov_scope", {})
        for name in self.hidden & scope.keys():
            del scope[name]


class DrawnByModel(Messenger):  # type: ignore[misc]
    """Remember what ``ConjugateReparam`` draws outside a plate, which no trace has."""

    def __init__(self, plate: str) -> None:
        super().__init__()
        self.plate = plate
        self.found: dict[str, Tensor] = {}

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        own = msg["infer"].get("_do_not_trace") and msg["infer"].get("is_auxiliary")
        if own and not in_plate(msg, self.plate):
            if msg["value"].requires_grad:
                wrong = "is drawn by the model itself from parameters"
                remedy = "leave that out: the guide draws it"
                raise MisfitError([Misfit(f"latent site {msg['name']!r}", wrong, remedy)])
            self.found[msg["name"]] = msg["value"]


def in_plate(site: Mapping[str, Any], plate: str) -> bool:
    """Whether a traced site is in the plate."""
    return any(frame.name == plate for frame in site["cond_indep_stack"])


class Reparameterise(Messenger):  # type: ignore[misc]
    """Draw a record's own normal latents out of place: vmap does not support Pyro's sampling."""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["value"] is None and not msg["is_observed"] and "enumerate" not in msg["infer"]:
            drawn = _reparameterised_draw(msg["fn"])
            if drawn is not None:
                msg["value"] = drawn


def base(fn: Any) -> Any:
    """Return the distribution inside an Independent."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn


def is_normal(fn: Any) -> bool:
    """Whether a distribution is normal, or a transform of one."""
    fn = base(fn)
    if isinstance(fn, TransformedDistribution):
        return is_normal(fn.base_dist)
    return isinstance(fn, (Normal, MultivariateNormal, LowRankMultivariateNormal))


def _reparameterised_draw(fn: Any) -> Tensor | None:
    """Return a reparameterised draw, or None for an unsupported distribution."""
    fn = base(fn)
    if isinstance(fn, TransformedDistribution):
        value = _reparameterised_draw(fn.base_dist)
        for transform in fn.transforms:
            value = None if value is None else transform(value)
        return value
    if isinstance(fn, MultivariateNormal):
        noise = torch.randn(fn.loc.shape, dtype=fn.loc.dtype, device=fn.loc.device)
        moved: Tensor = fn.loc + (fn.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)
        return moved
    if isinstance(fn, Normal):
        loc, scale = torch.broadcast_tensors(fn.loc, fn.scale)
        drawn: Tensor = loc + scale * torch.randn(loc.shape, dtype=loc.dtype, device=loc.device)
        return drawn
    return None
