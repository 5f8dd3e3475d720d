"""The full-rank guide's normal is torch's, without what torch loads for it."""

from __future__ import annotations

import torch
from test_layers import UNUSED, loaded
from torch.distributions import MultivariateNormal, kl_divergence

from bdpvi.guides.full_rank import FactoredNormal


def test_a_normal_by_its_factor_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    loc, x = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    factor = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64).tril()
    factor.diagonal(dim1=1, dim2=2).abs_()
    own, usual = FactoredNormal(loc, factor), MultivariateNormal(loc, scale_tril=factor)
    assert (own.batch_shape, own.event_shape) == (usual.batch_shape, usual.event_shape)
    for one in ("mean", "variance", "scale_tril", "covariance_matrix", "precision_matrix"):
        assert torch.equal(getattr(own, one), getattr(usual, one))
    assert torch.equal(own.log_prob(x), usual.log_prob(x))
    assert torch.equal(own.entropy(), usual.entropy())
    torch.manual_seed(1)
    draws = own.rsample((5,))
    torch.manual_seed(1)
    assert torch.equal(draws, usual.rsample((5,)))
    assert float(kl_divergence(own, usual).abs().max()) < 1e-12
    wider = own.expand((2, 3))
    assert wider.batch_shape == (2, 3)
    assert torch.equal(wider.mean[1], loc)


def test_a_fit_and_its_release_do_not_load_sympy() -> None:
    code = (
        "import torch; from bdpvi.guides import Laplace\n"
        "x = torch.linspace(-1, 1, 400, dtype=torch.float64)[:, None]\n"
        "model = bdpvi.BayesianLogisticRegression(intercept=False)\n"
        "data = bdpvi.Dataset(x, (x[:, 0] > 0.1).double())\n"
        "fit = bdpvi.fit(model, Laplace(model), data, progress=False)\n"
        "bdpvi.release(fit, draws=1)"
    )
    assert not loaded(code) & UNUSED
