"""The hockey-stick divergence δ(ε) from a moment generating function: certified inversion.

With the privacy loss ``L = log p/q`` under P and ``M(s) = E_P e^{sL}``,
``δ(ε) = E_P (1 - e^{ε-L})_+``. Composition adds ``log M``, so every composition of losses with
known ``M`` has a known δ. For two Gaussians L is a weighted sum of non-central χ² and δ has no
closed form unless the covariances agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from bdpvi._ground import validate

# Allowance for rounding, relative to the size of every exponent: a few hundred units in the last
# place, several times the measured error of log M against mpmath.
_ROUNDING = 1e-13
# The most that one neighbour of the trapezoid sum may add, relative to the Chernoff value.
_ALIASING = 3e-5
# Steps of the search for the saddle point, to 1 %, and lines tried on either side of it.
_ROUNDS, _BELOW, _ABOVE = 18, 12, 20
# Nodes and smoothing tried in turn; a δ too small to matter.
_TRIES = ((64, 0.0), (1024, 0.0015), (16384, 0.0015))
_NEGLIGIBLE = 1e-30
LOOSE = 1e-3
"""The most that truncation and rounding may add, as a fraction of δ."""
_SOME = 16  # records whose largest bound is looked for at a time
_BLOCK = 1 << 18  # nodes × records at a time


@dataclass(frozen=True, eq=False)
class Contour:
    """Nodes ``s_k = c + i k h`` for k = 0 … nodes - 1, up a vertical line in the complex plane.

    Attributes:
        abscissa: c > 0; shape () for one line that all records share, or (m,) for one line each.
        step: h > 0, shape () or (m,).
        nodes: J, at least 2.
        smoothing: v ≥ 0, shape () or (m,): variance of the privacy loss of a fictitious release
            that the inversion adds; see `Inversion`.

    Raises:
        ValueError: if the abscissa or the step is not positive and finite, the smoothing negative
            or not finite, or nodes < 2.

    >>> Contour(torch.tensor(2.0), torch.tensor(0.5), nodes=3).s
    tensor([2.+0.0000j, 2.+0.5000j, 2.+1.0000j], dtype=torch.complex128)
    """

    abscissa: Tensor
    step: Tensor
    nodes: int = 64
    smoothing: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    def __post_init__(self) -> None:
        for name in ("abscissa", "step", "smoothing"):
            value = validate.finite(name, getattr(self, name).double())
            object.__setattr__(self, name, value)
            if bool((value < 0).any()) or (name != "smoothing" and bool((value == 0).any())):
                raise ValueError(f"{name} must be positive, got {value.min().item()}")
        validate.positive_int("nodes", self.nodes, least=2)

    @property
    def s(self) -> Tensor:
        """The nodes, complex, shape (J,) or (J, m)."""
        h = self.step + torch.zeros_like(self.abscissa)
        k = torch.arange(self.nodes, dtype=h.dtype, device=h.device)
        y = torch.tensordot(k, h, dims=0)
        return torch.complex(self.abscissa.expand_as(y), y)


@dataclass(frozen=True, eq=False)
class Inversion:
    r"""A certified upper bound on δ(ε) from ``log M`` at the nodes of a contour, for m records.

    Its attributes are the parts of the trapezoid sums that do not depend on ε.

    *Inversion.* ``∫_0^∞ (1 - e^{-t}) e^{-st} dt = 1/(s(s+1))`` for Re s > 0, and ``|s|^{-2}`` is
    integrable along a vertical line, so for any c > 0 with M(c) finite (Fubini)
    ``δ(ε) = (1/2πi) ∫_{c-i∞}^{c+i∞} M(s) e^{-sε} / (s(s+1)) ds``.

    *The trapezoid sum lies above.* Put ``H(y) = M(c+iy)/((c+iy)(c+1+iy))``; then
    ``G(ε) = e^{cε} δ(ε) = (1/2π) ∫ e^{-iyε} H(y) dy`` and by Poisson summation
    ``(h/2π) Σ_k H(kh) e^{-ikhε} = Σ_n G(ε + 2πn/h)``. Times e^{-cε}, the sum over all integers k is
    ``Σ_n e^{2πnc/h} δ(ε + 2πn/h)``: its term n = 0 is δ(ε) and no term is negative. (The nodes
    must hold y = 0: shifted by half a step, odd terms change sign.) A small h makes the excess
    small: left neighbours are at most e^{-2πc/h}, right ones are damped as δ falls faster than
    e^{-cε}.

    *Truncation.* |M(c+iy)| decreases in |y|. It is a product over coordinates, draws and
    releases of ``r^{-c/2} |w|^{-1/2} exp(½ b² Re[s(s+1)/w])`` with ``w = 1 - sx``, x = r - 1, and
    Re w = 1 - cx > 0 does not depend on y. |w| increases in |y|; and
    ``s(s+1)/w = (r/w - (2+x) + w)/x²`` has the real part ``(r Re w/|w|² + const)/x²``, which
    decreases since r > 0 (for x = 0 it is c² + c - y²). With Y = (J-1)h and |s(s+1)| ≥ c² + y² the
    nodes beyond Y, of both signs, add at most ``|M(c+iY)| e^{-cε} atan(c/Y) / (πc)``.

    *A fictitious release.* If M falls off slowly, truncation needs many nodes. Composing with a
    further, independent Gaussian release of variance v never lowers δ (data processing) and
    multiplies M by ``e^{s(s+1)v/2}``, which falls off fast; it raises δ by a fraction of about
    c(c+1)v/2. This is ``contour.smoothing``.

    *Rounding* adds 1e-13 times every node's size times the size of its exponent.

    The result is the minimum of this sum, 1, and ``M(c) e^{-cε} c^c/(1+c)^{1+c}``, which is a bound
    since ``(1 - e^{-t})_+ ≤ e^{ct} c^c/(1+c)^{1+c}`` (Canonne, Kamath & Steinke 2020, Prop. 12).
    It is valid at every ε and tight near the ε that the contour was made for.

    Attributes:
        contour: the nodes.
        exists: whether M exists, (m,).
        log_top: log M at the first node, on the real axis, (m,).
        terms: M over its value at the top and over s(s+1), (J, m); half of it at the first node.
        noise: rounding per node size, (m,): the fixed part and the part that ε multiplies.
        tail: bound on the contribution of the truncated nodes, (m,).
    """

    contour: Contour
    exists: Tensor
    log_top: Tensor
    terms: Tensor
    noise: tuple[Tensor, Tensor]
    tail: Tensor

    @classmethod
    def of(cls, log_mgf: Tensor, contour: Contour) -> Inversion:
        """Prepare the inversion of ``log_mgf`` at the nodes.

        Args:
            log_mgf: ``log M(s)`` of a sum of Gaussian privacy losses, (J, m), complex, at
                ``contour.s``. For several independent releases, their sum; for k draws, k times
                one. +inf where M does not exist (the bound is then 1).
            contour: the nodes; the first lies on the real axis.

        Raises:
            ValueError: if ``log_mgf`` does not have J rows, or a value is NaN.

        >>> contour = Contour(torch.tensor(1.3), torch.tensor(0.4), nodes=32)
        >>> s = contour.s.unsqueeze(-1)
        >>> Inversion.of(s * (s + 1) / 2, contour).bound(1.0)[0]  # means one deviation apart
        tensor([0.1269], dtype=torch.float64)
        """
        if log_mgf.ndim != 2 or len(log_mgf) != contour.nodes:
            raise ValueError(
                f"log_mgf must have shape ({contour.nodes}, records), got {tuple(log_mgf.shape)}"
            )
        if bool(log_mgf.isnan().any()):
            raise ValueError("log_mgf has a value that is nan")
        s = contour.s.reshape(contour.nodes, -1)
        square = s * (s + 1)
        exists = (log_mgf.real < math.inf).all(0)
        exponents = torch.where(exists, log_mgf, 0) + square * (contour.smoothing / 2)
        log_top = exponents[0].real
        terms = (exponents - log_top).exp().div_(square)
        terms[0] /= 2  # the nodes below the real axis are the conjugates of those above
        sizes = terms.abs()
        c, y = s[0].real, s[-1].imag
        return cls(
            contour,
            exists,
            log_top,
            terms,
            (
                (sizes * (1 + exponents.abs() + log_top.abs())).sum(0),
                (sizes * s.abs()).sum(0),
            ),
            (exponents[-1].real - log_top).exp() * torch.atan2(c, y) / (math.pi * c),
        )

    def bound(self, epsilon: float) -> tuple[Tensor, Tensor]:
        """Return the bound at ε, (m,), and its fraction from truncation and rounding, (m,).

        It is never below 2e-308, so that underflow cannot hide a δ.

        Raises:
            ValueError: if ε is not finite.
        """
        eps = _finite(epsilon)
        s = self.contour.s.reshape(self.contour.nodes, -1)
        c, angle = s[0].real, s.imag * eps
        # The real part of terms · exp(-i y ε).
        total = (self.terms.real * angle.cos()).addcmul_(self.terms.imag, angle.sin()).sum(0)
        noise = _ROUNDING * (self.noise[0] + self.noise[1] * eps.abs())
        added = self.contour.step / math.pi * noise + self.tail
        trapezoid = self.contour.step / math.pi * total + added
        log_size = self.log_top - c * eps
        log_size = log_size + _ROUNDING * (1 + self.log_top.abs() + (c * eps).abs())
        bound = torch.minimum(log_size.exp() * trapezoid, (log_size + _log_peak(c)).exp())
        bound = torch.where(self.exists, bound, 1.0)
        return bound.clamp(min=torch.finfo(torch.float64).tiny, max=1), added / trapezoid


def contour_for(
    log_mgf: Callable[[Tensor], Tensor], epsilon: float, nodes: int = 64, smoothing: float = 0.0
) -> Contour:
    """Return a contour on which the bound is tight near ``epsilon``, one line per record.

    With separate lines the same few nodes serve records of very different scale. Releases compose
    on them as on a shared line: evaluate every release's log M at ``contour.s``.

    The curve ``φ(c) = log M(c) - cε + log c^c/(1+c)^{1+c}`` is convex and least at the saddle
    point; there e^φ is the Chernoff bound on δ(ε). Its chords bound the neighbours in the trapezoid
    sum (see `Inversion`): on the line through c, with t = 2π/h, the right one is at
    most ``exp(φ(c₂) - (c₂-c) t)`` for every c₂ > c, the left one
    ``exp(φ(c₁) - (c-c₁) t)`` for every c₁ < c, with φ(0) = 0. The result is the line, among those
    tried, with the largest step that keeps both below 3e-5 of the saddle's value: near the saddle
    if L is about normal, left of it if L has a heavy right tail, right of it if 0 is close.

    Args:
        log_mgf: maps real orders (K, m) to ``log M`` (K, m), +inf where it does not exist; called
            first with the order 1 of shape (1,) to learn m. For several releases, their sum.
        epsilon: ε at which the bound is to be tight.
        nodes: J.
        smoothing: fraction by which the fictitious release may raise δ; see `Contour`. 0 suits
            losses whose M falls off fast, such as when the means differ more than the covariances.

    Returns:
        A contour with abscissa, step and smoothing of shape (m,).

    Raises:
        ValueError: if epsilon is not finite, or smoothing negative or not finite.

    >>> contour_for(lambda s: s * (s + 1) / 2, epsilon=1.0).abscissa
    tensor([1.9184], dtype=torch.float64)
    """
    eps = _finite(epsilon)
    fraction = validate.non_negative("smoothing", smoothing)
    like = log_mgf(torch.ones(1, dtype=torch.float64)).reshape(-1)

    def curve(c: Tensor) -> Tensor:
        return log_mgf(c) - c * eps + _log_peak(c)

    saddle = _minimise(
        lambda u: curve(u.exp().unsqueeze(0))[0], like, math.log(1e-6), math.log(1e14), _ROUNDS
    ).exp()
    variance = 2 * fraction / (saddle * (saddle + 1))
    below, above = torch.logspace(-3, -0.0005, _BELOW), torch.logspace(-3, 6, _ABOVE)
    factors = torch.cat([1 - below.flip(0), torch.ones(1), 1 + above]).to(like)
    c = factors.unsqueeze(-1) * saddle
    phi = curve(c) + c * (c + 1) * variance / 2
    height = torch.cat([torch.zeros_like(phi[:1]), phi]) - phi[len(below)] - math.log(_ALIASING)
    factors = torch.cat([torch.zeros_like(factors[:1]), factors])
    between = (factors.unsqueeze(1) - factors).abs().reciprocal().unsqueeze(2)
    # In units of the saddle point.
    period, abscissa = torch.full_like(saddle, math.inf), saddle
    for i in range(1, len(factors) - 1):
        left = (height[:i] * between[i, :i]).amin(0)
        right = (height[i + 1 :] * between[i, i + 1 :]).amin(0)
        needed = torch.maximum(left, right)
        better = needed < period
        period = torch.where(better, needed, period)
        abscissa = torch.where(better, factors[i] * saddle, abscissa)
    period = period / saddle
    # Beyond the largest loss δ is 0 and any step suffices.
    step = (2 * math.pi / period / abscissa).clamp(min=1e-6, max=1e3) * abscissa
    return Contour(abscissa, step, nodes, variance)


LogMgf = Callable[[Tensor], Tensor]
"""Maps orders s (J,) or (J, n) to log M(s) of n records, (J, n): real to real, complex to complex;
see `contour_for`."""

Tries = Sequence[tuple[int, float]]
"""Nodes and smoothing, tried in turn."""


def inversions(
    log_mgf_of: Callable[[Tensor], LogMgf],
    rows: Tensor,
    epsilon: float,
    tries: Tries,
    negligible: float,
) -> Iterator[tuple[Tensor, Inversion]]:
    """Invert on contours made for ``epsilon``, block by block, until every bound is tight.

    A record is retried with more nodes as long as truncation and rounding add a fraction of more
    than ``LOOSE`` and a δ of more than ``LOOSE * negligible``.

    Args:
        log_mgf_of: maps the indices of records to their log M.
        rows: the indices of the records.
        epsilon: ε.
        tries: nodes and smoothing, in turn.
        negligible: δ below which the bound need not be tight.

    Yields:
        Indices and their inversion. A record's bound is the least over its inversions.
    """
    for nodes, smoothing in tries:
        if not len(rows):
            return
        loose = []
        for block in rows.split(_BLOCK // nodes):
            log_mgf = log_mgf_of(block)
            contour = contour_for(log_mgf, epsilon, nodes, smoothing)
            inversion = Inversion.of(log_mgf(contour.s), contour)
            delta, added = inversion.bound(epsilon)
            loose.append(block[_is_loose(delta, added, negligible).cpu()])
            yield block, inversion
        rows = torch.cat(loose)


def hockey_stick_bound(
    log_mgf_of: Callable[[Tensor], LogMgf], records: int, epsilon: float, tries: Tries = _TRIES
) -> Tensor:
    """Return a certified upper bound on δ(ε) for each record, on contours made for that ε.

    Every record is tried with few nodes, then, if the bound is more than 0.1 % loose, with many and
    a smoothing of 0.15 %; the few records that one variable dominates get very many nodes. Memory
    grows only with the number of records.

    Args:
        log_mgf_of: maps the indices of records to their log M.
        records: m, the number of records.
        epsilon: ε.
        tries: nodes and smoothing, in turn; with fewer the bound may be looser.

    Returns:
        The bound, (m,).

    Raises:
        ValueError: if epsilon is not finite.

    >>> hockey_stick_bound(lambda rows: lambda s: s * (s + 1) / 2, 1, 1.0)
    tensor([0.1269], dtype=torch.float64)
    """
    delta = torch.ones(records, dtype=torch.float64)
    tried = inversions(log_mgf_of, torch.arange(records), epsilon, tries, _NEGLIGIBLE)
    for rows, inversion in tried:
        delta[rows] = torch.minimum(delta[rows], inversion.bound(epsilon)[0].to(delta))
    return delta


def largest_bound(
    log_mgf_of: Callable[[Tensor], LogMgf], records: int, epsilon: float
) -> tuple[int, float]:
    """Return the record with the largest bound of :func:`hockey_stick_bound`, and this bound.

    Records that few nodes show to have a smaller one are not tried again.

    >>> at, bound = largest_bound(lambda rows: lambda s: s * (s + 1) / 2, 1, 1.0)
    >>> at, round(bound, 4)
    (0, 0.1269)
    """
    quick, loose = torch.ones(records, dtype=torch.float64), torch.ones(records, dtype=torch.bool)
    tried = inversions(log_mgf_of, torch.arange(records), epsilon, _TRIES[:1], _NEGLIGIBLE)
    for rows, inversion in tried:
        delta, added = inversion.bound(epsilon)
        quick[rows], loose[rows] = delta.to(quick), _is_loose(delta, added, _NEGLIGIBLE).cpu()
    best, at = -1.0, 0
    for some in quick.argsort(descending=True, stable=True).split(_SOME):
        if float(quick[some[0]]) <= best:
            break
        again = some[loose[some]]
        of_some = partial(lambda again, rows: log_mgf_of(again[rows]), again)
        found = hockey_stick_bound(of_some, len(again), epsilon, _TRIES[1:])
        quick[again] = torch.minimum(quick[again], found)
        if float(quick[some].max()) > best:
            best, at = float(quick[some].max()), int(some[quick[some].argmax()])
    return at, best


def _is_loose(delta: Tensor, added: Tensor, negligible: float) -> Tensor:
    """Return whether more nodes may help: truncation and rounding add too much."""
    return (added > LOOSE) & (delta * added > LOOSE * negligible)


def _minimise(
    f: Callable[[Tensor], Tensor], like: Tensor, low: float, high: float, rounds: int
) -> Tensor:
    """Golden-section search for the minimum of a function with one valley, per entry.

    The function may be +inf to the right of the valley: between two +inf the search goes left.
    """
    shrink = (math.sqrt(5) - 1) / 2
    a, b = torch.full_like(like, low), torch.full_like(like, high)
    x, z = b - shrink * (b - a), a + shrink * (b - a)
    at_x, at_z = f(x), f(z)
    for _ in range(rounds):
        go_right = at_x > at_z
        a, b = torch.where(go_right, x, a), torch.where(go_right, b, z)
        new = torch.where(go_right, a + shrink * (b - a), b - shrink * (b - a))
        at_new = f(new)
        x, z = torch.where(go_right, z, new), torch.where(go_right, new, x)
        at_x, at_z = torch.where(go_right, at_z, at_new), torch.where(go_right, at_new, at_x)
    return torch.where(at_x > at_z, z, x)


def _log_peak(c: Tensor) -> Tensor:
    """Return ``log c^c/(1+c)^{1+c}``, the largest value of ``log (1-e^{-t}) - ct``."""
    return -(c * c.reciprocal().log1p() + c.log1p())


def _finite(epsilon: float | Tensor) -> Tensor:
    return validate.finite("epsilon", torch.as_tensor(epsilon, dtype=torch.float64))
