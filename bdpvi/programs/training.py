"""Private variational inference for a model and a guide: price, training, posterior."""

from __future__ import annotations

import hashlib
import inspect
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from pyro.contrib.easyguide import EasyGuide
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoGuide, AutoNormal
from pyro.infer.autoguide.effect import AutoMessenger
from torch import Tensor
from torch.distributions import transform_to

from bdpvi._ground import progress as bars
from bdpvi._ground.checkpoint import Checkpoint, KeptState, settings_of
from bdpvi._ground.host import HOST, on
from bdpvi._ground.isolation import isolated
from bdpvi._ground.outputs import several
from bdpvi._ground.promotion import Promotion
from bdpvi.bayesian.inference.fingerprint import described
from bdpvi.bayesian.inference.guide import check_steps
from bdpvi.bayesian.inference.optimisers import fused
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.datasets.dataset import Data, sample_of_form
from bdpvi.datasets.named import arguments_of
from bdpvi.models.contract import Model
from bdpvi.models.misfits import MisfitError
from bdpvi.models.multinomial import BayesianMultinomialRegression
from bdpvi.models.parameters import Holder, TrainedModel, modules_of, typed
from bdpvi.models.traces import check_without_targets
from bdpvi.noise.keys import Key
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.course import Course
from bdpvi.programs.descent import Descent, tell_ignored
from bdpvi.programs.moments import drawn, identified, near_listed, prior_deviations, standardised
from bdpvi.programs.plan import DPVIPlan
from bdpvi.programs.program import Program, copied
from bdpvi.programs.reading import read
from bdpvi.programs.replays import Replays
from bdpvi.programs.settings import Settings
from bdpvi.programs.sources import latents_like
from bdpvi.releases.estimate import Gaussian, Output
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.releases.row_counts import words_of_rows

if TYPE_CHECKING:
    from bdpvi.releases.route import Allowance

_RATE, _DECAY = 0.05, 0.1
_OF_CLASSES, _REACH = (0.01, 0.03), 1 / 40
"""Adam's learning rate for classes: this share of the most, between these, so that where there is
little noise large weights are reached. It does not decay: where noise dominates all steps say as
much, and unequal ones waste some of it."""
_HARM = 0.24
"""The most is this over ν(d + 1)√T, as the path length in ``bdpvi/bench/methods/pace.py``."""
_SHORT = 0.6
"""C over √(d + 1) for classes, as in ``bdpvi/bench/methods/pace.py``: a record's score is at most
√2 times as long as its features, which are about √(d + 1)."""
_START = 4.0
"""The default guide's initial scales, in units of 1/√N: at least those of most posteriors."""


@dataclass(frozen=True, kw_only=True)
class SuitedDPVI(Settings):
    """:class:`bdpvi.DPVI` for a model, after a test run of model and guide on dummy records.

    Attributes:
        guide: the given guide, or the default.
        size: D, number of coordinates of a record's gradient.
        start: the modules' weights before any training, by their names in a :class:`Holder`.
        sites: shapes of the global latents.
        amortised: whether the guide has latents of single records.
        units: whether each record is all rows of a unit.
        mixed: whether model and guide mix types of numbers, as
            :class:`~bdpvi._ground.promotion.Promotion` has it.
    """

    guide: Any = field(repr=False)
    size: int = field(repr=False)
    start: dict[str, Tensor] = field(repr=False)
    sites: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    amortised: bool = field(default=False, repr=False)
    units: bool = field(default=False, repr=False)
    mixed: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, settings: Settings, model: Model, data: Data, guide: object) -> SuitedDPVI:
        """Return the route for a model, as :meth:`bdpvi.DPVI.adapt`."""
        check_steps(guide)
        if (own := getattr(model, "check", None)) is not None:
            own(sample_of_form(data))
        guide = _usual(model) if guide is None else guide
        holder = Holder(modules_of(model, guide))
        start = {name: value.clone() for name, value in holder.state_dict().items()}
        given = {one.name: getattr(settings, one.name) for one in fields(Settings)}
        made = cls(**given, guide=guide, size=0, start=start, units=data.people.are_records)
        try:
            return made._tried(model, data)
        except MisfitError:
            raise
        except ValueError:
            with suppress(ValueError):  # of which the first says more
                return replace(made, mixed=True)._tried(model, data)
            raise

    def _tried(self, model: Model, data: Data) -> SuitedDPVI:
        """Return the route with its size, after a test run."""
        with self._alone(model, data):
            program = self._read(model, data)
            now = Holder(modules_of(model, self.guide)).state_dict()
            if late := sorted(now.keys() - self.start.keys()):
                name = late[0].split(".", 2)[-1]  # without the holder's part
                raise ValueError(
                    f"guide makes {name!r} in its first run, and a training starts anew: make it "
                    "in __init__, and hand a guide of Pyro's over as it is. Nothing was charged"
                )
            prior_deviations(program)  # refuse before any charge
            Replays(program, rows=2)  # refuses a loss named Jit that it cannot record
            like, named = data.like[0], arguments_of(data)
            if named or like.is_floating_point():
                like = typed(latents_like(data), model)
            row = like.new_zeros(1, len(data.feature_names))
            check_without_targets(model, named, row, program.sites)
            sites = {site.name: tuple(site.shape) for site in program.sites}
            return replace(self, size=program.size, sites=sites, amortised=program.local)

    @contextmanager
    def _alone(self, model: Model, data: Data, seed: int | None = None) -> Iterator[None]:
        """Run model and guide with nothing of the caller's, in the type of training."""
        kind, rule = typed(latents_like(data), model, self.guide), nullcontext()
        with isolated(kind, seed), on(HOST), Promotion() if self.mixed else rule:
            yield

    @property
    def rehearsal(self) -> SuitedDPVI:
        """The route of two steps whose noise is next to nothing, for made-up records."""
        few = {"checkpoint": None, "progress": False, "batch": None, "draws": 2, "steps": 2}
        return replace(self, rows=1e6, **few)  # type: ignore[arg-type]

    def reset(self, model: Model) -> None:
        """Give the modules the weights that they had before any training."""
        Holder(modules_of(model, self.guide)).load_state_dict(self.start)

    def adapt(self, model: Model, data: Data, guide: object) -> SuitedDPVI:
        """Return the route for another model; see :meth:`bdpvi.DPVI.adapt`."""
        return SuitedDPVI.of(self, model, data, guide)

    def plan(self, model: Model, features: int, left: Allowance) -> DPVIPlan:
        """Return the settings, a function of public numbers.

        After earlier releases the rate may depend on them. Then the charge is a Gaussian mechanism
        and 5 % of δ for every rate, and the noise, at most 2 % larger, keeps the steps within
        it (:mod:`bdpvi.privacy.dominating`).
        """
        usual = None
        if isinstance(model, BayesianMultinomialRegression) and not self.units:
            usual = _SHORT * math.sqrt(_weights(model, features))
        return DPVIPlan.of(self, self.size, left, self.units, usual)

    def pace(self, model: Model, plan: DPVIPlan, features: int) -> tuple[float, float]:
        """Return Adam's first learning rate, and the last over it.

        T steps at a rate r move a weight by r√T, and a logit by r√(T(d + 1)), if noise alone moves
        it: classes, which have many weights, go as far as their noise lets them.
        """
        if not isinstance(model, BayesianMultinomialRegression):
            return self.lr or _RATE, _DECAY
        assert self.rows is not None
        event = plan.actual_event
        noise = plan.clip.bound * event.noise_multiplier / (event.rate * self.rows)  # ν√T
        most = _HARM / (noise * _weights(model, features))
        least, largest = _OF_CLASSES
        return self.lr or min(most, max(least, min(largest, _REACH * most))), 1.0

    def predicting(self, model: Model, plan: DPVIPlan) -> Model:
        """Return the model."""
        return model

    def words(self, plan: DPVIPlan) -> str:
        """Return the number of rows that the settings are for, and its source."""
        return words_of_rows(self.rows, self.counted)

    def caution(self, plan: DPVIPlan, delta: float) -> str:
        """Return a warning if noise outweighs the records."""
        noise = plan.actual_event.noise_multiplier * math.sqrt(plan.size / self.steps)
        if noise < plan.actual_event.rate * self.rows / 4:  # type: ignore[operator]
            return ""
        return (
            f"privacy noise dominates: about {self.rows:,.0f} records are few for "
            f"{several(plan.size, 'coordinate')} at this ε. A larger ε, fewer latents and "
            "parameters, or more records would help"
        )

    def draw(self, model: Model, data: Data, plan: DPVIPlan, key: Key) -> Output:
        """Train, and return the posterior with its draws.

        The checkpoint keeps a key's result and returns it again, so that one charge covers one
        training, whatever happened to the model since.
        """
        begun = {} if self.checkpoint is None else settings_of(Path(self.checkpoint))
        folder = Checkpoint(self.checkpoint if begun else None, begun)  # begun by secret()
        name = f"training-{key.work}"
        kept = folder.unfinished_part(name)
        found = folder.once(name, lambda: self._train(model, data, plan, key, kept))
        here = data.like[0].device
        parameters = {
            n.removeprefix("of "): v.to(here) for n, v in found.items() if n.startswith("of ")
        }
        Holder(modules_of(model)).load_state_dict(parameters, strict=False)  # on a return too
        return self._output(found, parameters, model, data, key)

    def _train(
        self, model: Model, data: Data, plan: DPVIPlan, key: Key, kept: KeptState
    ) -> dict[str, Tensor]:
        """Return the latents' mean and covariance, and the model's parameters."""
        self.reset(model)
        start = int(key.child("start"))
        with self._alone(model, data, start % 2**63):
            program = self._read(model, data)
            mechanism = NoisySum(
                rate=plan.actual_event.rate,
                clip=1.0,
                noise_multiplier=plan.actual_event.noise_multiplier,
                size=plan.size,
                records=1,
                length=len(data),
                seed=int(key.child("steps")),
            )
            lr, decay = self.pace(model, plan, len(data.feature_names))
            optim = fused(default_optimiser(self.steps, lr=lr, decay=decay))
            descent = Descent(program, optim, mechanism, plan.clip, self.steps)
            known = identified(program, model, len(data.feature_names))
            course = Course(descent, self.steps, known)
            track = bars.bar if self.progress else bars.silent
            course.run(track(range(self.steps), "private fit"), kept)
            tell_ignored(course.descent.ignored, 9)
            mean, covariance, measured, settled, moved = course.posterior()
            mean = near_listed(mean, measured, program, model, data)
            values = {f"of {name}": one for name, one in _values(program, model).items()}
            own = {"mean": mean, "covariance": covariance, "measured": measured}
            if not course.gaussian:
                own["shape"] = standardised(drawn(program, self.draws), measured)
            if isinstance(model, BayesianMultinomialRegression) and math.isfinite(moved):
                own["moved"] = torch.tensor(moved, dtype=torch.float64)
            return {**own, "settled": torch.tensor(settled), **values}

    def _output(
        self,
        found: dict[str, Tensor],
        parameters: dict[str, Tensor],
        model: Model,
        data: Data,
        key: Key,
    ) -> Output:
        mean, spread, kind = found["mean"], found["covariance"], data.like[0].dtype
        arguments = arguments_of(data)
        whole = spread.ndim == 2
        guide = Gaussian(
            mean=tuple(mean.tolist()),
            variances=tuple((spread.diagonal() if whole else spread).tolist()),
            covariance=tuple(map(tuple, ((spread + spread.mT) / 2).tolist())) if whole else (),
            sites=self.sites,
            measured=tuple(found["measured"].tolist()),
            settled=bool(found["settled"]),
            moved=float(found["moved"]) if "moved" in found else None,
            amortised=self.amortised,
            features="" if kind.is_floating_point or arguments else str(kind).split(".")[1],
            arguments=arguments,
            shape=tuple(map(tuple, found["shape"].tolist())) if "shape" in found else (),
        )
        flat = guide.draws(self.draws, key.child("draws")).to(typed(latents_like(data), model))
        trained = TrainedModel.of(model, parameters)
        latents = guide.latents(trained, flat, len(data.feature_names))
        return Output(latents, guide=guide, flat=flat, parameters=parameters)

    def _read(self, model: Model, data: Data) -> Program:
        """Return the program; with a copy of a Pyro guide, as each is trained once."""
        guide = self.guide
        if isinstance(guide, AutoGuide | AutoMessenger | EasyGuide):
            fresh = copied(guide, model)
            if self.rows is not None and isinstance(fresh, _Usual):
                # With noise a scale that is too large adapts more slowly than one too small.
                fresh._init_scale = min(fresh._init_scale, _START / math.sqrt(self.rows))
            guide = fresh
        loss = Trace_ELBO() if self.loss is None else self.loss
        kind = typed(latents_like(data), model, self.guide).dtype
        return read(model, guide, loss, Arguments.of_data(data, kind, self.steps), self.plate)

    def secret(self, model: Model, data: Data, epsilon: float, delta: float) -> Key:
        """Return a key derived from all inputs of a training; begin its checkpoint.

        Its random part is stored in the checkpoint: if that is lost, the next call is another
        training and is charged again. Modules start as in the first call.

        Raises:
            ValueError: if the checkpoint was begun by a model or guide of the same text that
                computes something else.
        """
        assert self.checkpoint is not None
        settings = replace(self, checkpoint=None, progress=False, loss=None)
        parts = (
            *(settings, type(self.loss).__name__, described(model), _words_of_guide(self.guide)),
            *(epsilon, delta, data.fingerprint(), *(str(one.dtype) for one in data.like)),
            *(torch.__version__, version("bdpvi"), str(Path(self.checkpoint).resolve())),
        )
        run = hashlib.sha256(repr(parts).encode()).hexdigest()

        def now() -> dict[str, Tensor]:
            nonce = torch.frombuffer(bytearray(os.urandom(32)), dtype=torch.uint8)
            return {_NONCE: nonce, **{name: one.clone() for name, one in self.start.items()}}

        kept = Checkpoint(self.checkpoint, {"run": run})
        begun = kept.once("start", now)
        nonce = described(begun[_NONCE])
        self.start.update({name: value for name, value in begun.items() if name != _NONCE})
        tried = self._probe_loss(model, data)
        if not torch.allclose(tried, kept.once("trial", lambda: {"loss": tried})["loss"], 1e-6):
            raise ValueError(
                f"checkpoint={str(self.checkpoint)!r} holds a training of another model or guide: "
                "go on with that, or give each training a folder of its own"
            )
        return Key(hashlib.sha256(f"{run} {nonce}".encode()).digest())

    def _probe_loss(self, model: Model, data: Data) -> Tensor:
        """Return the loss of a draw from a fixed seed, without records and of one record of zeros.

        It shows what the text of a model or guide does not: closures, sizes, scales.
        """
        self.reset(model)
        with self._alone(model, data, 0):
            program = self._read(model, data)
            draw = program.draw()
            public = draw.public.detach().reshape(1).double()
            one = program.record_losses(draw, program.arguments.stand_in).double()
            return torch.cat([public, one.sum().reshape(1)]).nan_to_num()


_NONCE = "nonce of the run"


def _weights(model: BayesianMultinomialRegression, features: int) -> int:
    """Return d + 1, the number of weights of each class."""
    return int(model.design(torch.zeros(1, features)).shape[1])


def _words_of_guide(guide: Any) -> str:
    """Return a guide's text, or the kind of one of Pyro's or the library's guides."""
    return described(guide) if inspect.isroutine(guide) else type(guide).__name__


class _Usual(AutoNormal):  # type: ignore[misc]
    """The default guide."""


def _usual(model: Model) -> AutoNormal:
    """Return a guide of independent normals for all continuous latents."""

    def discrete(site: dict[str, Any]) -> bool:
        support = getattr(site["fn"], "support", None)  # a plate's subsample has none
        return support is not None and bool(support.is_discrete)

    return _Usual(poutine.block(model, hide_fn=discrete))


def _values(program: Program, model: Model) -> dict[str, Tensor]:
    """Return the values of the model's parameters, named as in :class:`TrainedModel`."""
    places = {id(one): name for name, one in Holder(modules_of(model)).named_parameters()}
    values = {}
    for name in program.direct:
        value = program.parameters[name].detach()
        if name in program.constraints:
            values[name] = transform_to(program.constraints[name])(value).clone()
        elif id(program.parameters[name]) in places:
            values[places[id(program.parameters[name])]] = value.clone()
    return values
