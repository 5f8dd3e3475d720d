"""Private variational inference as a route: any Pyro model, trained by noisy gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bdpvi.datasets.dataset import Data
from bdpvi.models.contract import Model
from bdpvi.programs.settings import Settings

if TYPE_CHECKING:  # settings need not load the training code
    from bdpvi.programs.training import SuitedDPVI


@dataclass(frozen=True, kw_only=True)
class DPVI(Settings):
    """Any Pyro model by variational inference with clipped, noisy gradients of single records.

    A Gaussian guide is trained as with :class:`bdpvi.PrivateSVI`, with settings from public facts:
    the noise from ε, the rate from the number of records, the clip from a noisy count of the
    records beyond it. Parameters are averaged over the last half of the steps, and the guide's
    covariance becomes that of the curvatures in the noisy gradients, between pairs of up to 100
    latents too, widened by what noise and batches leave in that average. All of it is private, so
    draws cost nothing. A guide that is not Gaussian, such as a flow or a mode, is released by
    draws, moved and scaled likewise, each latent by itself. Latents should have about unit size, by
    public scales.

    Args:
        rows: N as declared by the owner, within a factor of 3. By default N is estimated privately,
            for 1 % of the price.
        draws: number of posterior draws; any number has the same price.
        steps: number of optimiser steps.
        batch: expected number of records in a batch.
        clip: C, fixed; None adapts it to the noisy count.
        lr: Adam's initial learning rate, by default 0.05; it decays to a tenth. For several classes
            it is constant: by default 0.01, less where noise is large, up to 0.03 where small.
        loss: ``Trace_ELBO()``; ``TraceEnum_ELBO()`` sums out enumerated latents.
            Steps are recorded and replayed where that pays, as in :class:`bdpvi.PrivateSVI`.
        plate: name of the plate over the records, if there are several candidates.
        checkpoint: new secret folder for the state of training: after an interruption the same
            call resumes from it, and nothing is charged twice. The ledger must be in a file.
        progress: whether to show a progress bar.
        counted: whether ``rows`` is a noisy count instead of declared.
    """

    def adapt(self, model: Model, data: Data, guide: object) -> SuitedDPVI:
        """Return the route with guide and size, after a test run of model and guide.

        Raises:
            ValueError: if a site, which it names with a remedy, cannot be protected.
        """
        from bdpvi.programs.training import SuitedDPVI

        return SuitedDPVI.of(self, model, data, guide)
