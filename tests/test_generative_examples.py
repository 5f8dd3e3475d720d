"""The generative examples, with few steps and few images: losses fall, and ε is the event's."""

from __future__ import annotations

import math
import re

import cvae
import embedding
import pytest
import torch
from _images import DELTA, DIGITS, Images, one_hot
from scipy import optimize, stats
from sklearn.datasets import load_digits

from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant


@pytest.fixture(scope="module")
def digits() -> Images:
    """Return scikit-learn's digits, as large as MNIST's."""
    found = load_digits()
    x = torch.tensor(found.images / 16, dtype=torch.float32).repeat_interleave(3, 1)
    x = torch.nn.functional.pad(x.repeat_interleave(3, 2), (2, 2, 2, 2))
    return x.flatten(1), torch.tensor(found.target)


@pytest.mark.parametrize("example", [embedding, cvae], ids=lambda one: one.__name__)
def test_an_example_prints_its_epsilon_and_its_students(
    example: object,
    digits: Images,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(_: object) -> tuple[Images, Images]:
        standard = (digits[0].view(-1, 1, 28, 28) - 0.1307) / 0.3081
        return (standard[:1500], digits[1][:1500]), (standard[1500:], digits[1][1500:])

    monkeypatch.setattr("bdpvi.datasets.mnist.load_mnist", load)
    main = example.main  # type: ignore[attr-defined]
    main(["--steps", "2", "--each", "10", "--epsilon", "2"])
    printed = capsys.readouterr().out
    found = re.search(r"worst-case DP[^:]*: ε = (\S+)", printed)
    assert found is not None
    epsilon = float(found[1])
    assert 1.98 <= epsilon <= 2
    assert "loss" in printed
    assert "students on real images" in printed


def gaussian(distance: float, delta: float = DELTA) -> float:
    """Return ε of a Gaussian mechanism by its δ(ε) (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        tail = stats.norm.logcdf(-distance / 2 - epsilon / distance)
        first = float(stats.norm.cdf(distance / 2 - epsilon / distance))
        return first - math.exp(epsilon + float(tail)) - delta

    return float(optimize.brentq(excess, 0, 2e3, xtol=1e-13))


def test_the_embedding_is_one_gaussian_mechanism_of_its_epsilon(digits: Images) -> None:
    ledger, w = Ledger(), embedding.frequencies()
    target = embedding.release(*digits, w, 1.0, ledger)
    (entry,) = ledger.entries()
    assert entry.events is not None
    (event,) = entry.events
    found = ledger.worst_case(DELTA)
    assert found is not None
    assert found.epsilon == pytest.approx(1.0, abs=1e-9)
    assert isinstance(event, SampledGaussian)
    noise = event.noise_multiplier
    assert gaussian(1 / noise) == pytest.approx(1.0, abs=1e-9)
    exact = embedding.embedding(*digits, w)
    left = target.double() * len(digits[1]) / DIGITS - exact
    assert left.std().item() == pytest.approx(noise, rel=0.03)  # of 30,000: seven deviations


def test_an_image_moves_the_embedding_by_its_own_features_alone(digits: Images) -> None:
    w = embedding.frequencies()
    whole = embedding.embedding(*digits, w)
    for at in (0, 700, 1796):
        rest = torch.arange(len(digits[1])) != at
        moved = whole - embedding.embedding(digits[0][rest], digits[1][rest], w)
        assert 1 - 1e-4 < float(moved.norm()) <= 1
        assert float(moved[digits[1][at]].norm()) == float(moved.norm())
    inner = embedding.features(digits[0][:1], w) @ embedding.features(digits[0][1:2], w).T
    apart = float((digits[0][0] - digits[0][1]).square().sum())
    assert float(inner) == pytest.approx(math.exp(-apart / 2 / embedding.WIDTH**2), abs=0.1)


def test_the_autoencoder_learns_at_the_price_of_its_steps(digits: Images) -> None:
    torch.manual_seed(0)
    private = cvae.private_cvae(digits, 0.1, epsilon=20.0, steps=15)
    some = digits[0][:200], one_hot(digits[1][:200])

    def loss() -> float:
        with torch.no_grad():
            return float(cvae.negative_elbo(private.module(*some), some[0]).mean())

    before = loss()
    for _ in range(15):
        private.step()
    assert loss() < 0.8 * before
    check_price(private, 0.1, 15)


def check_price(private: object, rate: float, steps: int) -> None:
    """Check ε against the privacy loss distribution of the noise that was added."""
    noise = private.mechanism.noise_multiplier  # type: ignore[attr-defined]
    expected = PrivacyLossAccountant().epsilon(noise, rate, steps, DELTA)
    found = private.worst_case(DELTA).epsilon  # type: ignore[attr-defined]
    assert found == pytest.approx(expected, abs=1e-9)
    assert 19.8 < found <= 20
