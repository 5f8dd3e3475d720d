"""Base class of the private estimators: preprocessing, charging, and the release."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from bdpvi._ground.outputs import several

if TYPE_CHECKING:  # torch is not loaded before a fit
    from bdpvi import Release
    from bdpvi.bayesian.guarantees import Guarantee
    from bdpvi.datasets import Encoding, Schema
    from bdpvi.noise.keys import Key
    from bdpvi.sklearn.inputs import Inputs
    from bdpvi.tables.request import Request
    from bdpvi.tables.rows import Encoded
    from bdpvi.tables.setup import Setup

__all__ = ["Floats", "PrivacyLeakWarning", "PrivateEstimator"]

Floats = NDArray[np.float64]


class PrivacyLeakWarning(UserWarning):
    """An estimator leaks something that its guarantee does not cover."""


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator that charges and releases every ``fit``.

    It keeps only the release, so it may be pickled and shared. Its fields are the parameters of
    every estimator.
    """

    epsilon: float = 1.0
    _: KW_ONLY
    delta: float = 1e-5
    draws: int = 1
    limit: float | None = None
    bounds: tuple[ArrayLike, ArrayLike] | None = None
    scales: tuple[ArrayLike, ArrayLike] | None = None
    from_data: bool = False
    types: Schema | None = None
    formula: str = ""
    largest_weight: float | None = None
    expected_rows: float | None = None
    rows_per_unit: int = 1
    group: str | None = None
    ledger: str | None = None
    random_state: int | np.random.RandomState | None = None

    _trial = None  # type: Any
    """The work of a rehearsal."""
    unit_ = None  # type: str | None
    """The column of X that names persons, or groups that are records; no feature."""

    def _weights(self, options: Mapping[str, Any]) -> Any:
        """Return the rows' weights among the options of ``fit``; refuse others."""
        from bdpvi.datasets.weights import weight_words

        if unknown := sorted(options.keys() - {"sample_weight"}):
            raise TypeError(f"fit() has no argument {unknown[0]!r}")
        weights = options.get("sample_weight")
        weight_words("sample_weight", weights, self.largest_weight)
        return weights

    def _guarantee(self) -> Guarantee:
        """Return the kind of guarantee."""
        from bdpvi import WorstCaseDP

        return WorstCaseDP()

    def _secret(self) -> Key:
        """Return the key from which all keys of a fit are derived."""
        from bdpvi.noise.keys import Key

        if self.random_state is None:
            return Key.fresh()
        warnings.warn(
            f"random_state={self.random_state!r} makes an experiment: anyone who knows it can "
            "subtract the noise, so there is no guarantee; a release needs random_state=None",
            PrivacyLeakWarning,
            stacklevel=6,
        )
        return Key.of_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))

    def _people(self, unit: ArrayLike | None) -> dict[str, Any]:
        """Return the unit of privacy: its name, and the most rows of a person.

        Raises:
            ValueError: if the arguments do not go together.
        """
        from bdpvi import WorstCaseDP
        from bdpvi._ground import validate
        from bdpvi.privacy.book import ROW

        rows = validate.positive_int("rows_per_unit", self.rows_per_unit)
        if unit is None:
            if rows > 1:
                raise ValueError(
                    f"rows_per_unit={rows} needs the person of each row: fit(X, y, unit=persons), "
                    "or the name of their column in X"
                )
            return {"unit": ROW, "rows_per_unit": 1}
        if self._guarantee().name != WorstCaseDP.name:
            raise ValueError(
                f"guarantee={self._guarantee()!r} covers one row; leave unit or guarantee out"
            )
        name = unit if isinstance(unit, str) else str(getattr(unit, "name", None) or "unit")
        return {"unit": "unit" if name == ROW else name, "rows_per_unit": rows}

    @property
    def _declares_features(self) -> bool:
        """Whether arguments declare how the features were made, from public constants."""
        return any(one is not None for one in (self.bounds, self.scales, self.types))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # such a record is left out
        tags.input_tags.string = True
        return tags

    def _given_scaling(self, inputs: Inputs) -> Encoding | None:
        """Return the scaling of numbers if it is given, and need not be estimated privately."""
        from bdpvi.tables import rows

        given = {name: getattr(self, name) for name in ("bounds", "scales")}
        given = {name: value for name, value in given.items() if value is not None}
        given |= {"from_data": True} if self.from_data else {}
        if len(given) > 1:
            one, other = (f"{name}={value!r}" for name, value in [*given.items()][:2])
            raise ValueError(f"{one} and {other} were both given; give one")
        if self.bounds is not None:
            return rows.of_bounds(self.bounds, inputs.numbers)
        if self.scales is not None:
            return rows.of_scales(self.scales, inputs.numbers)
        return rows.of_rows(inputs.values, inputs.numbers) if self.from_data else None

    def _columns(self, inputs: Inputs, y: Floats) -> Inputs:
        """Return the columns whose constants are wanted: those of X, or with the target."""
        return inputs

    def _request(self, inputs: Inputs, **asked: Any) -> Request:
        """Return what is asked for the constants, some of which may be public."""
        from bdpvi._ground.types import Unit
        from bdpvi.tables.formulas import with_terms
        from bdpvi.tables.request import Request
        from bdpvi.tables.validation import check

        base_rate = asked.pop("base_rate", None)
        given = {"base_rate": base_rate, "rows": self.expected_rows}
        if self.largest_weight is not None:
            given |= {"weights": inputs.unlike("weight"), "largest_weight": self.largest_weight}
        if self.group is not None:
            given["group"] = self.group
            if inputs.groups is not None:
                asked["unit"] = Unit(self.group, self.rows_per_unit)
        known = inputs.public(self._given_scaling(inputs), **given)
        made = Request(
            target=inputs.label,
            positive=1 if asked.get("model") is None else None,
            epsilon=self.epsilon,
            delta=self.delta,
            draws=self.draws,
            public=known,
            formula=self.formula.rpartition("~")[2],
            **asked,
        )
        made = with_terms(made, [name for name in inputs.columns if name != inputs.target])
        check(made)
        return made

    def _setup(
        self, asked: Request, found: Encoded | None, target: tuple[float, float] | None = None
    ) -> Setup:
        """Return model and route; ``target`` has its estimated centre and scale, if it has any."""
        raise NotImplementedError

    def _check(self, columns: Inputs, asked: Request, given: Encoded | None, rows: int) -> None:
        """Refuse what would be noticed only after a charge; ``rows`` are the most of a person."""

    def _fit(self, *given: Any, **noted: Any) -> None:
        """Fit and release; arguments as for :func:`bdpvi.sklearn.fitting.fit`."""
        from bdpvi.sklearn.fitting import fit

        fit(self, *given, **noted)

    def _encoding(self, names: Sequence[str]) -> Encoding:
        """Return how columns with these names become features."""
        from bdpvi.tables.rows import of_scales

        result = self.encoding_ or of_scales((self.center_, self.scale_), names)
        assert result is not None
        return result

    def _declarations(self, kinds: dict[str, tuple[str, ...]]) -> dict[str, str]:
        """Return the arguments' declarations about the table, in words."""
        from bdpvi.datasets.origin import declarations
        from bdpvi.datasets.weights import weight_words
        from bdpvi.releases.row_counts import about

        kinds = {"formula": (self.formula,) if self.formula else (), **kinds}
        names = ("classes", "base_rate", "target_bounds")
        given = {name: getattr(self, name, None) for name in names}
        if (most := getattr(self, "largest", None)) is not None:
            given["target_bounds"] = (0, most)
        said = {
            name: tuple(np.ravel(np.asarray(one)).tolist())
            for name, one in given.items()
            if one is not None
        }
        weights = getattr(self, "class_weight", None) or {}
        said["class weights"] = tuple(f"{name}: {one:g}" for name, one in weights.items())
        most = self.largest_weight
        weighed = weight_words("sample_weight", most, most)
        return declarations(**said, **kinds, weights=weighed, rows=about(self.expected_rows))

    def _features(self, X: ArrayLike) -> Any:
        """Return the release's input, (N, d), for new rows, each cell read as in ``fit``.

        A cell that is no number counts as the centre, or as the level that a blank has.
        """
        import torch

        from bdpvi.datasets.cells import read_columns
        from bdpvi.datasets.looks import tell_of_unclear, unclear
        from bdpvi.sklearn.inputs import Inputs, as_numbers, table_of

        frame = table_of(self, X, reset=False)[0].drop(columns=self.unit_ or [])
        if isinstance(X, list | tuple):
            frame = frame.reindex(range(len(X)))
        encoding = self._encoding([*frame])
        read_by = encoding.types if self.encoding_ is not None else as_numbers(frame)
        rows = Inputs(read_columns(frame, read_by))
        tell_of_unclear(unclear(encoding, rows.columns), encoding, 5)
        return torch.from_numpy(rows.features(encoding))

    def _together(self, guarantee: str, together: str) -> str:
        """Return the guarantee with the total cost of all fits, unless the receipt has it."""
        from bdpvi.privacy.ledger import Ledger

        if self.ledger is None:
            return guarantee if together else f"{guarantee}, this fit only"
        ledger = Ledger.at(self.ledger)
        number = len({charge.of for charge in ledger.book().charges})
        total = ledger.worst_case(self.delta)
        all_of_them = "none" if total is None else f"{total.epsilon:.4g}"
        return f"{guarantee}; total of {several(number, 'fit')} in this ledger: ε = {all_of_them}"

    def _keep(self, release: Release, encoding: Encoding) -> None:
        """Set the attributes common to all models, from the release and public scaling."""
        from bdpvi.models.mixed import effects_of

        receipt, groups = release.receipt, effects_of(release.model)
        self._fixed = [at for at in range(len(encoding.scales)) if at not in groups]
        self.center_, self.scale_ = np.array(encoding.scales)[self._fixed].T.copy()
        self.encoding_ = encoding if encoding.unknown == "other" else None
        self.bound_ = receipt.bound
        self.guarantee_ = str(receipt)
        if not receipt.experiment:
            self.guarantee_ = (
                f"{self._together(self.guarantee_, receipt.together)}. {receipt.meaning}"
            )
        self.release_: Any = release

    def _set_estimates(self) -> Floats:
        """Set summary and intervals; return the coefficients on the scale of X, (d,)."""
        self.summary_ = self.release_.summary()
        every = self.summary_.coefficients
        rows = [every[at] for at in self._fixed]
        ends = np.array([(row.low, row.high) for row in rows], dtype=np.float64)
        self.coef_interval_ = ends.reshape(-1, 2)
        if self.summary_.spread is not None:
            _, self.tau_, *known, self.tau_measured_ = self.summary_.spread
            self.tau_interval_ = np.array(known)
            of_groups = [at not in self._fixed for at in range(len(every) - 1)]
            names = ["mean", "sd", "low", "high", "note"]
            made = self.summary_.to_frame().loc[[*of_groups, False], names]
            self.effects_ = made.rename(lambda name: name.removeprefix(f"{self.group}="))
        return np.asarray([row.mean for row in rows])
