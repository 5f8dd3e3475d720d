"""Checks of arguments: every message names the argument and its value.

Comparisons have the form ``not x > 0`` so that NaN fails them too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from bdpvi._ground.outputs import several

if TYPE_CHECKING:
    from torch import Tensor

Size = TypeVar("Size", bound=float)
_KINDS = "biuf"
"""Kinds of numpy's and pandas' types: booleans, integers, floating point."""


def _real(name: str, value: float) -> float:
    """Return ``value`` if it can be compared with numbers.

    >>> positive("epsilon", "1")
    Traceback (most recent call last):
        ...
    ValueError: epsilon must be a number, got '1' of type str
    """
    try:
        value > 0  # noqa: B015
    except TypeError:
        kind = type(value).__name__
        raise ValueError(f"{name} must be a number, got {value!r} of type {kind}") from None
    if isinstance(value, int) and value.bit_length() > 1000:
        raise ValueError(
            f"{name} must be a number below 1e300, got one of {value.bit_length()} bits"
        )
    return value


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is finite and above 0.

    >>> positive("temperature", 2.0)
    2.0
    >>> positive("temperature", -1.0)
    Traceback (most recent call last):
        ...
    ValueError: temperature must be finite and positive, got -1.0
    """
    if not (_real(name, value) > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be finite and positive, got {value!r}")
    return float(value)


def single(name: str, value: float) -> float:
    """Return ``value`` if it is positive and at most 1e38, which tensors of any precision hold.

    >>> single("limit", 1e300)
    Traceback (most recent call last):
        ...
    ValueError: limit must be at most 1e+38, got 1e+300
    """
    return at_most(name, positive(name, value), 1e38)


LEAST_EPSILON = 1e-9
"""A smaller ε is beyond the accounting's precision, and useless."""


def epsilon(value: float) -> float:
    """Return an ε if it is finite and not too small.

    >>> epsilon(1e-320)
    Traceback (most recent call last):
        ...
    ValueError: epsilon must be at least 1e-09, got 1e-320
    """
    if positive("epsilon", value) < LEAST_EPSILON:
        raise ValueError(f"epsilon must be at least {LEAST_EPSILON:g}, got {value!r}")
    return float(value)


def finite_number(name: str, value: float) -> float:
    """Return ``value`` if it is finite."""
    if not math.isfinite(_real(name, value)):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def non_negative(name: str, value: float) -> float:
    """Return ``value`` if it is finite and at least 0."""
    if not (_real(name, value) >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be finite and at least 0, got {value!r}")
    return float(value)


def choice(name: str, value: str, among: Iterable[str]) -> str:
    """Return ``value`` if it is one of the names.

    >>> choice("guide", "low-rank", ["full-rank", "mean-field"])
    Traceback (most recent call last):
        ...
    ValueError: guide must be one of ['full-rank', 'mean-field'], got 'low-rank'
    """
    names = list(among)
    if value not in names:
        raise ValueError(f"{name} must be one of {names}, got {value!r}")
    return value


def text(name: str, value: Any, holds: Callable[[str], object], rule: str) -> str:
    """Return ``value``, or raise ValueError unless it is text for which ``holds``.

    >>> text("unit", "patient", len, "be a name")
    'patient'
    """
    if not isinstance(value, str) or not holds(value):
        raise ValueError(f"{name} must {rule}, got {value!r:.80}")
    return value


def positive_int(name: str, value: int, least: int = 1) -> int:
    """Return ``value`` if it is an integer of at least ``least``."""
    if isinstance(value, bool) or not _real(name, value) >= least or value != value // 1:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def at_most(name: str, size: Size, most: float, remedy: str = "") -> Size:
    """Return a size from untrusted input, if it is within a limit.

    Readers of shared files call it before they allocate that size.

    >>> at_most("classes", 2**62, 1000)
    Traceback (most recent call last):
        ...
    ValueError: classes must be at most 1000, got 4611686018427387904
    """
    if not _real(name, size) <= most:
        raise ValueError(f"{name} must be at most {most}, got {size!r}{remedy and f'; {remedy}'}")
    return size


def probability(name: str, value: float) -> float:
    """Return ``value`` if it lies strictly between 0 and 1."""
    if not 0 < _real(name, value) < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return float(value)


def columns(argument: str, names: Iterable[str], header: Sequence[str]) -> None:
    """Raise ValueError unless each of these names is that of one column."""
    for name in names:
        if (found := header.count(name)) != 1:
            shown = ", ".join(map(repr, header[:20])) + ", …" * (len(header) > 20)
            raise ValueError(
                f"{argument}={name!r} must be a column of the table once, there are {found}; its "
                f"columns are {shown}"
            )


def why(error: Exception) -> str:
    """Return an error's message, without the operating system's error number.

    >>> why(FileNotFoundError(2, "No such file or directory", "a.csv"))
    'no such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def mean_delta(delta: float, records: int) -> float:
    """Return a δ that is a mean over ``records``; warn if it may leave one unprotected.

    A δ of 1/N permits that one of N records is fully exposed. N is secret, and a refusal would be
    an output, so the owner has to decide.

    >>> mean_delta(1e-5, 30_000)
    1e-05
    """
    if probability("delta", delta) * records >= 1:
        warnings.warn(
            f"delta={delta:g} is at least 1/N = {1 / records:.2g}: as δ is a mean over records, "
            "one of them could be fully exposed. Choose a smaller δ",
            UserWarning,
            stacklevel=3,
        )
    return float(delta)


def rate(name: str, value: float) -> float:
    """Return ``value`` if it lies in (0, 1]."""
    if not 0 < _real(name, value) <= 1:
        raise ValueError(f"{name} must lie in (0, 1], got {value!r}")
    return float(value)


def finite(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if all entries are finite; the message has the first that is not."""
    if value.is_floating_point() and math.isfinite(value.sum()):
        return value  # the sum shows it: one pass
    bad = (~value.isfinite()).nonzero()
    if len(bad):
        where = tuple(bad[0].tolist())
        raise ValueError(f"{name} has a value that is not finite: {value[where].item()} at {where}")
    return value


def same_length(name: str, value: Sized, other_name: str, other: Sized) -> None:
    """Raise ValueError unless both have the same number of entries."""
    if len(value) != len(other):
        raise ValueError(
            f"{name} has {several(len(value), 'entry', 'entries')}, {other_name} has {len(other)}"
        )


def every(name: str, value: Tensor, holds: Tensor, rule: str) -> Tensor:
    """Return ``value`` if ``holds`` is true for all entries; the message has the first that fails.

    >>> import torch
    >>> distance = torch.tensor([1.0, -2.0])
    >>> every("distance", distance, distance >= 0, "be at least 0")
    Traceback (most recent call last):
        ...
    ValueError: distance must be at least 0, got -2.0
    """
    if not bool(holds.all()):
        raise ValueError(f"{name} must {rule}, got {value[~holds].flatten()[0].item()!r}")
    return value


def numbers(name: str, values: object) -> Tensor:
    """Return numbers as a tensor: a floating-point tensor unchanged, anything else in float64.

    Args:
        name: name of the argument.
        values: a tensor, a numpy array, a pandas frame or series, or lists.

    Raises:
        ValueError: if a value is not a number; it names a frame's column.

    >>> numbers("y", [True, False])
    tensor([1., 0.], dtype=torch.float64)
    """
    import numpy as np
    import torch

    if isinstance(values, torch.Tensor):
        if values.is_complex():
            raise ValueError(f"{name} must be real numbers, got {values.dtype}")
        return values.detach() if values.is_floating_point() else values.double()
    kinds: Any = getattr(values, "dtypes", None)  # of a frame or a series
    for column, kind in kinds.items() if hasattr(kinds, "items") else ():
        if kind.kind not in _KINDS:
            raise ValueError(
                f"{name} has the column {str(column)!r} of type {kind}; make it numbers, or let "
                "bdpvi.datasets.from_frame encode the table"
            )
    try:
        if hasattr(values, "to_numpy") and getattr(kinds, "kind", "f") in _KINDS:
            array = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers in rows of equal length: {error}") from error
    if array.dtype.kind not in _KINDS:
        raise ValueError(
            f"{name} must be numbers, got {type(values).__name__} of {array.dtype}; "
            f"yes/no text becomes numbers by {name} == 'yes'"
        )
    # In row order, as other containers: sums are then the same to the last bit.
    return torch.from_numpy(np.array(array, dtype=np.float64, order="C"))


def disjoint(name: str, groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return disjoint groups of column numbers as tuples; ``name`` is the argument's name."""
    columns = [column for group in groups for column in group]
    whole = all(isinstance(column, int) and column >= 0 for column in columns)
    if not whole or not all(groups) or len(set(columns)) < len(columns):
        raise ValueError(
            f"{name} must hold column numbers from 0 on, each at most once, got {groups!r}"
        )
    return tuple(tuple(group) for group in groups)
