"""The identity of a training run, as text that is the same in every process."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from types import FunctionType
from typing import Any

import torch
from pyro import poutine
from pyro.optim import PyroOptim
from torch import Tensor

from bdpvi.bayesian.inference.svi import Problem, isolated

SECRET = "secret "
"""Prefix of a numeric seed."""
_PROBED = 64
"""Number of records on which a model is tried."""


def identity(problem: Problem) -> dict[str, str]:
    """Return everything that determines the fit, by :func:`bdpvi.fit`'s argument names.

    A model may be any callable, so in addition to its source it is identified by a trial: one prior
    draw from a fixed seed, and the log-densities of its sites.
    """
    data, plan = problem.data, problem.plan
    with isolated(data.x):
        problem.guide.setup(data.x, data.y)
        guide = (
            f"{described(type(problem.guide))} from {described(problem.guide.initial(data.x))}, "
            f"released with {problem.guide.ridge}, {problem.guide.noise_scale}"
        )
        model = f"{described(problem.model)} with {_probe_densities(problem)}"
    return {
        "dtype": str(data.x.dtype),
        "device": data.x.device.type,
        "data": data.fingerprint(),
        "model": model,
        "guide": guide,
        "steps": str(plan.steps),
        "rate": repr(plan.rate),
        "seed": SECRET * plan.secret + str(plan.seed),
        "optim": _optimiser(problem.optim),
        "torch": torch.__version__,
        "bdpvi": version("bdpvi"),
    }


def described(value: Any) -> str:
    """Return any setting as text without memory addresses; functions are given by their source.

    >>> described({"lr": 0.1, "betas": (0.9, 0.99)})
    '{betas: (0.9, 0.99), lr: 0.1}'
    """
    if isinstance(value, Mapping):
        items = (f"{key}: {described(value[key])}" for key in sorted(value, key=str))
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(described, value)) + ")"
    if isinstance(value, Tensor):
        return _digest(value.detach().cpu().contiguous().numpy().tobytes())
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, partial):
        return f"{described(value.func)}{described(value.args)}{described(value.keywords)}"
    if isinstance(value, FunctionType):
        try:
            source = inspect.getsource(value)
        except OSError:  # typed at a prompt
            source = value.__code__.co_code.hex()
        return f"{value.__qualname__} {_digest(source.encode())}"  # a module may have several names
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _probe_densities(problem: Problem) -> str:
    """Return the log-density of every site, to ten digits because processors round differently."""
    torch.default_generator.manual_seed(0)
    x, y = problem.data.x[:_PROBED], problem.data.y[:_PROBED]
    with torch.no_grad():
        trace = poutine.trace(problem.model).get_trace(x, y)
        trace.compute_log_prob()
    sites = ((name, site) for name, site in trace.nodes.items() if "log_prob_sum" in site)
    return ", ".join(f"log p({name}) = {float(site['log_prob_sum']):.10g}" for name, site in sites)


def _optimiser(optim: PyroOptim) -> str:
    settings = (
        optim.pt_optim_constructor,
        optim.pt_optim_args,
        optim.pt_clip_args,
        getattr(optim, "pt_scheduler_constructor", None),
        getattr(optim, "kwargs", None),
    )
    return described(settings)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
