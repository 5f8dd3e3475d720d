"""Programs of the zoo with networks."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.transforms import affine_coupling, spline
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn
from torch.nn.functional import one_hot, softplus

from .entry import RECORDS, Program, Refused, counts, normal, whole

N = RECORDS


class Coder(nn.Module):
    """Location and scale from a hidden layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, 4)
        self.loc, self.log_scale = nn.Linear(4, outputs), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = softplus(self.hidden(x))
        return self.loc(hidden), torch.exp(self.log_scale(hidden))


class Autoencoder(nn.Module):
    """A variational autoencoder, as in Pyro's example."""

    def __init__(self, inputs: int = 5) -> None:
        super().__init__()
        self.encoder, self.decoder = Coder(inputs, 2), nn.Linear(2, inputs)

    def model(self, x: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", x.shape[0]):
            z = pyro.sample("latent", dist.Normal(x.new_zeros(x.shape[0], 2), 1.0).to_event(1))
            law = dist.Bernoulli(logits=self.decoder(z)).to_event(1)
            pyro.sample("obs", law, obs=x.reshape(-1, 5))

    def guide(self, x: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", x.shape[0]):
            loc, scale = self.encoder(x)
            pyro.sample("latent", dist.Normal(loc, scale).to_event(1))


class Conditional(Autoencoder):
    """Fills in the second part of a record from the first."""

    def model(self, x: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("latent", dist.Normal(x[:, :2], 1.0).to_event(1))
            pyro.sample("obs", dist.Normal(self.decoder(z)[:, 2:], 0.5).to_event(1), obs=x[:, 2:])


class Cells(nn.Module):
    """Counts of genes in a cell, as of scVI: a code, and a library size, of each cell."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.library = Coder(6, 2), Coder(6, 1)
        self.decoder = nn.Linear(2, 6)

    def model(self, x: Tensor) -> None:
        pyro.module("cells", self)
        theta = pyro.param("theta", torch.ones(6), constraint=dist.constraints.positive)
        with pyro.plate("cells", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            size = pyro.sample("size", dist.LogNormal(torch.ones(1), 0.5).to_event(1))
            mean = size * torch.softmax(self.decoder(z), -1)
            logits = (mean + 1e-6).log() - theta.log()
            law = dist.ZeroInflatedNegativeBinomial(theta, logits=logits, gate=torch.tensor(0.1))
            pyro.sample("x", law.to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("cells", self)
        with pyro.plate("cells", len(x)):
            loc, scale = self.encoder(torch.log1p(x))
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))
            loc, scale = self.library(torch.log1p(x))
            pyro.sample("size", dist.LogNormal(loc, scale).to_event(1))


class Labelled(nn.Module):
    """A semi-supervised autoencoder: −1 is a label that is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.classes = Coder(5 + 3, 2), nn.Linear(5, 3)
        self.decoder = nn.Linear(2 + 3, 5)

    def model(self, x: Tensor, label: Tensor) -> None:
        pyro.module("labelled", self)
        with pyro.plate("data", len(x)):
            with poutine.mask(mask=label >= 0):
                pyro.sample("y", dist.Categorical(torch.ones(3) / 3), obs=label.clamp(min=0))
            self.decoded(x, label)

    def decoded(self, x: Tensor, y: Tensor) -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        code = torch.eye(3)[y.clamp(min=0)]
        pyro.sample(
            "x", dist.Normal(self.decoder(torch.cat([z, code], -1)), 1.0).to_event(1), obs=x
        )

    def guide(self, x: Tensor, label: Tensor) -> None:
        pyro.module("labelled", self)
        with pyro.plate("data", len(x)):
            code = torch.eye(3)[label.clamp(min=0)]
            loc, scale = self.encoder(torch.cat([x, code], -1))
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))


class Semi(Labelled):
    """The same with a label that is enumerated, where it is not known, in the guide."""

    def model(self, x: Tensor, label: Tensor) -> None:
        pyro.module("labelled", self)
        with pyro.plate("data", len(x)):
            law = dist.Categorical(torch.ones(3) / 3)
            y = pyro.sample("y", law, infer={"enumerate": "parallel"})
            known = (label < 0) | (y == label)
            pyro.factor("label", torch.where(known, 0.0, -1e3))
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            code = one_hot(y, 3).to(x.dtype)
            shape = torch.broadcast_shapes(z.shape[:-1], code.shape[:-1])
            both = torch.cat([z.expand(*shape, 2), code.expand(*shape, 3)], -1)
            pyro.sample("x", dist.Normal(self.decoder(both), 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor, label: Tensor) -> None:
        pyro.module("labelled", self)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=self.classes(x)))
            loc, scale = self.encoder(torch.cat([x, x[:, :3]], -1))
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))


class Summed(Semi):
    """As it is helped: the model sums the label out."""

    def guide(self, x: Tensor, label: Tensor) -> None:
        pyro.module("labelled", self)
        with pyro.plate("data", len(x)):
            loc, scale = self.encoder(torch.cat([x, x[:, :3]], -1))
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))


class Series(nn.Module):
    """A deep Markov model: a guide reads a series of four backwards."""

    def __init__(self, kind: Any = nn.GRU, **more: Any) -> None:
        super().__init__()
        self.forth, self.emit = Coder(2, 2), nn.Linear(2, 3)
        self.back, self.combine = kind(3, 4, batch_first=True, **more), Coder(2 + 4, 2)

    def model(self, x: Tensor) -> None:
        pyro.module("series", self)
        with pyro.plate("series", len(x)):
            z = x.new_zeros(len(x), 2)
            for t in pyro.markov(range(x.size(1))):
                loc, scale = self.forth(z)
                z = pyro.sample(f"z_{t}", dist.Normal(loc, scale).to_event(1))
                law = dist.Normal(self.emit(z), 1.0).to_event(1)
                pyro.sample(f"x_{t}", law, obs=x[:, t])

    def guide(self, x: Tensor) -> None:
        pyro.module("series", self)
        with pyro.plate("series", len(x)):
            hidden = self.back(x.flip(1))[0].flip(1)
            z = x.new_zeros(len(x), 2)
            for t in pyro.markov(range(x.size(1))):
                loc, scale = self.combine(torch.cat([z, hidden[:, t]], -1))
                z = pyro.sample(f"z_{t}", dist.Normal(loc, scale).to_event(1))


class Stepwise(Series):
    """The same with a cell in a loop."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.back, self.cell = None, kind(3, 4)

    def guide(self, x: Tensor) -> None:
        pyro.module("series", self)
        with pyro.plate("series", len(x)):
            state, z = None, x.new_zeros(len(x), 2)
            for t in pyro.markov(range(x.size(1))):
                state = self.cell(x[:, t], state)
                hidden = state[0] if isinstance(state, tuple) else state
                loc, scale = self.combine(torch.cat([z, hidden], -1))
                z = pyro.sample(f"z_{t}", dist.Normal(loc, scale).to_event(1))


class Flow(nn.Module):
    """A density by transforms of a normal: the likelihood has all parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            [
                affine_coupling(2, [4]),
                spline(2, count_bins=4),
                spline(2, count_bins=4, order="quadratic"),
            ]
        )

    def model(self, x: Tensor) -> None:
        pyro.module("flow", self)
        law = dist.TransformedDistribution(
            dist.Normal(x.new_zeros(2), 1.0).to_event(1), list(self.parts)
        )
        law.clear_cache()
        with pyro.plate("data", len(x)):
            pyro.sample("x", law, obs=x)

    def guide(self, x: Tensor) -> None:
        """Have no latents."""

    def guide_of(self, _: Any) -> Any:
        """Return the guide, after the transforms have forgotten the records of the last run."""
        part: Any
        for part in self.parts:
            part._cached_x_y = None, None
        return self.guide


class Topics(nn.Module):
    """Documents as counts of words, whose topics have a logistic normal prior."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Coder(7, 3)
        self.beta = nn.Linear(3, 7, bias=False)

    def model(self, docs: Tensor) -> None:
        pyro.module("decoder", self.beta)
        with pyro.plate("documents", docs.shape[0]):
            theta = pyro.sample("theta", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            share = torch.softmax(self.beta(torch.softmax(theta, -1)), -1)
            pyro.sample("docs", dist.Multinomial(probs=share, validate_args=False), obs=docs)

    def guide(self, docs: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("documents", docs.shape[0]):
            loc, scale = self.encoder(docs)
            pyro.sample("theta", dist.Normal(loc, scale).to_event(1))


def entries() -> dict[str, Program | Refused]:
    """Return the programs by name."""
    torch.manual_seed(4)
    x, label = normal(N, 5), whole(4, N) - 1

    def of(made: Any, *data: Tensor, loss: Any = Trace_ELBO) -> Program:
        return Program(made.model, data, lambda _: made.guide, loss)

    kinds = {
        "GRU": Series(),
        "LSTM, two layers": Series(nn.LSTM, num_layers=2),
        "RNN": Series(nn.RNN, nonlinearity="relu"),
        "GRU cell": Stepwise(nn.GRUCell),
        "LSTM cell": Stepwise(nn.LSTMCell),
        "RNN cell": Stepwise(nn.RNNCell),
    }
    semi = of(Semi(), x, label, loss=lambda: TraceEnum_ELBO(max_plate_nesting=1))
    torch.manual_seed(4)
    summed = of(Summed(), x, label, loss=lambda: TraceEnum_ELBO(max_plate_nesting=1))
    flow = Flow()
    return {
        "autoencoder": of(Autoencoder(), counts(2, N, 5), loss=TraceMeanField_ELBO),
        "conditional autoencoder": of(Conditional(), x),
        "cells": of(Cells(), counts(9, N, 6)),
        "labelled autoencoder": of(Labelled(), x, label),
        "semi-supervised autoencoder": Refused(semi, "leave a discrete one to the model", summed),
        **{f"deep Markov model, {n}": of(one, normal(N, 4, 3)) for n, one in kinds.items()},
        "normalising flow": Program(flow.model, (3 * normal(N, 2),), flow.guide_of),
        "topics by a network": of(Topics(), counts(4, N, 7) + 1),
    }
