"""Worst-case ε of a training run, counted step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bdpvi._runtime import validate
from bdpvi.accounting.plain import check_settings
from bdpvi.accounting.worst_case import PrivacyLossAccountant, WorstCaseAccountant


class StepAccountant:
    """Counts the steps of a training run as they happen.

    All steps are alike: one that differs is refused.

    Args:
        accountant: from what the run did to ε, by default privacy loss distributions.

    >>> accountant = StepAccountant()
    >>> for _ in range(2000):
    ...     accountant.step(noise_multiplier=4.0, sample_rate=0.01)
    >>> len(accountant), round(accountant.get_epsilon(delta=1e-3), 3)
    (2000, 0.232)
    """

    def __init__(self, accountant: WorstCaseAccountant | None = None) -> None:
        self.accountant: WorstCaseAccountant = accountant or PrivacyLossAccountant()
        self._alike: tuple[float, float] | None = None
        self._steps = 0

    def __len__(self) -> int:
        return self._steps

    def step(self, *, noise_multiplier: float, sample_rate: float, count: int = 1) -> None:
        """Charge ``count`` steps.

        Args:
            noise_multiplier: σ, positive: the noise's standard deviation over the clipping norm.
            sample_rate: Poisson sampling rate q in (0, 1].
            count: number of steps.

        Raises:
            ValueError: if a number is out of range, or differs from that of earlier steps.
        """
        now = (
            validate.positive("noise_multiplier", noise_multiplier),
            validate.rate("sample_rate", sample_rate),
        )
        validate.positive_int("count", count)
        if self._alike not in (None, now):
            raise ValueError(
                f"noise_multiplier={now[0]!r} and sample_rate={now[1]!r} differ from those of the "
                f"steps before, {self._alike}; account for such a run by dp_accounting"
            )
        self._alike = now
        self._steps += count

    def get_epsilon(self, *, delta: float) -> float:
        """Return the worst-case ε at ``delta`` of all steps so far; +inf where there is none.

        Raises:
            ValueError: if there was no step, or δ does not lie strictly between 0 and 1.
        """
        if self._alike is None:
            raise ValueError("nothing has been charged yet, so there is no ε to report")
        return self.accountant.epsilon(*self._alike, self._steps, delta)

    def state_dict(self) -> dict[str, Any]:
        """Return what was charged, as numbers and texts. Nothing in it is computed from records."""
        return {"settings": self._settings(), "alike": self._alike, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` has returned, instead of what was charged here.

        Raises:
            ValueError: if it is of another accountant or cannot be read.
        """
        check_settings(state, self._settings())
        read = StepAccountant(self.accountant)
        try:
            if state["alike"] is not None:
                noise, rate = state["alike"]
                read.step(noise_multiplier=noise, sample_rate=rate, count=state["steps"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"state cannot be read: {error!r}") from error
        self._alike, self._steps = read._alike, read._steps

    def _settings(self) -> dict[str, Any]:
        return {"accountant": repr(self.accountant)}
