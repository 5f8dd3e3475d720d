"""Kernels for numba written as formulas: their values are vectors of a processor, in LLVM's code.

A loop over lanes would become vectors by itself, but one at a time, of half the width there may be,
and with tests of whether arrays overlap. Here a line of lanes, several vectors side by side, is one
value, and what is not stored stays in registers.

numba keeps machine code as long as the file with the calling function does not change: after a
change here, touch those that import it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

LINE = 128 if binding.get_host_cpu_features().get("avx512f") else 64
"""Bytes of a line: two vectors of the processor."""

DOUBLES = LINE // 8
"""Numbers of double precision in a line."""

_JOINED = ("contract",)
"""A product and a sum may become one instruction."""

_EXPONENT_OF_1, _EXPONENT_OF_2_52 = 1023 << 52, (1023 + 52) << 52
_BITS_OF_ROOT_HALF = int(np.sqrt(0.5).view(np.int64))
"""Numbers of 64 bits as their bits."""

_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
"""Division by zero gives inf, as in torch."""


def compiled(function: Function) -> Function:
    """Return a function in machine code, which is kept for the next process if it can be."""
    try:
        result: Function = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # there is no folder to keep machine code in
        result = njit(**_OPTIONS)(function)
    return result


@dataclass(frozen=True)
class Value:
    """A number, a line of numbers or an index, known when the code runs.

    Numbers of Python beside it count as its own type, in every place of a line.
    """

    builder: Any
    value: Any

    @property
    def kind(self) -> Any:
        """Its LLVM type."""
        return self.value.type

    @property
    def double(self) -> bool:
        """Whether its numbers have 64 bits."""
        return bool(getattr(self.kind, "element", self.kind) == ir.DoubleType())

    def of(self, number: float) -> Value:
        """Return a constant of the same type."""
        return Value(self.builder, _constant(self.kind, number))

    def _beside(self, other: Value | float) -> Value:
        return other if isinstance(other, Value) else self.of(other)

    def _with(self, whole: str, real: str, a: Value | float, b: Value | float) -> Value:
        left, right = self._beside(a), self._beside(b)
        if isinstance(self.kind, ir.IntType):
            return Value(self.builder, getattr(self.builder, whole)(left.value, right.value))
        result = getattr(self.builder, real)(left.value, right.value, flags=_JOINED)
        return Value(self.builder, result)

    def __add__(self, other: Value | float) -> Value:
        return self._with("add", "fadd", self, other)

    __radd__ = __add__

    def __sub__(self, other: Value | float) -> Value:
        return self._with("sub", "fsub", self, other)

    def __rsub__(self, other: float) -> Value:
        return self._with("sub", "fsub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return self._with("mul", "fmul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | float) -> Value:
        return self._with("sdiv", "fdiv", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return self._with("sdiv", "fdiv", other, self)

    def __neg__(self) -> Value:
        return Value(self.builder, self.builder.fneg(self.value))

    def where(self, sign: str, other: Value | float, yes: Value, no: Value) -> Value:
        """Return ``yes`` where this compares so to the other, else ``no``."""
        right = self._beside(other)
        compare = self.builder.icmp_signed
        if not isinstance(self.kind, ir.IntType):
            compare = self.builder.fcmp_ordered
        chosen = compare(sign, self.value, right.value)
        return Value(self.builder, self.builder.select(chosen, yes.value, no.value))

    def least(self, other: Value | float) -> Value:
        """Return the smaller; NaN where this is."""
        other = self._beside(other)
        return other.where("<", self, other, self)

    def largest(self, other: Value | float) -> Value:
        """Return the larger; NaN where this is."""
        other = self._beside(other)
        return other.where(">", self, other, self)

    def root(self) -> Value:
        """Return the square root of a line."""
        name = f"llvm.sqrt.v{self.kind.count}{self.kind.element.intrinsic_name}"
        type_ = ir.FunctionType(self.kind, [self.kind])
        function = cgutils.get_or_insert_function(self.builder.module, type_, name)
        return Value(self.builder, self.builder.call(function, [self.value]))

    def apart(self) -> tuple[Value, Value]:
        """Return f from √½ to √2 and a whole n of the same type, this being f · 2ⁿ, in 64 bits.

        This must be a normal positive number.
        """
        whole = ir.VectorType(ir.IntType(64), self.kind.count)
        bits = self.builder.bitcast(self.value, whole)
        # what is added makes the exponent the biased one of n, whatever the digits
        moved = self.builder.add(bits, _constant(whole, _EXPONENT_OF_1 - _BITS_OF_ROOT_HALF))
        exponent = self.builder.lshr(moved, _constant(whole, 52))
        taken = self.builder.shl(exponent, _constant(whole, 52))
        fraction = self.builder.sub(bits, self.builder.sub(taken, _constant(whole, _EXPONENT_OF_1)))
        # below 2⁵², the last digits of 2⁵² + n are those of n
        shifted = self.builder.or_(exponent, _constant(whole, _EXPONENT_OF_2_52))
        n = Value(self.builder, self.builder.bitcast(shifted, self.kind)) - (2.0**52 + 1023)
        return Value(self.builder, self.builder.bitcast(fraction, self.kind)), n

    def times_power(self, exponent: Value) -> Value:
        """Return this times 2ⁿ, n being the exponent's last bits: they are added to its own."""
        whole = ir.IntType(64 if self.double else 32)
        if isinstance(self.kind, ir.VectorType):
            whole = ir.VectorType(whole, self.kind.count)
        number, power = (self.builder.bitcast(v.value, whole) for v in (self, exponent))
        shifted = self.builder.shl(power, _constant(whole, 52 if self.double else 23))
        return Value(
            self.builder, self.builder.bitcast(self.builder.add(number, shifted), self.kind)
        )


def _constant(kind: Any, number: float) -> Any:
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [ir.Constant(kind.element, number)] * kind.count)
    return ir.Constant(kind, number)


@dataclass(frozen=True)
class Lines:
    """A contiguous array, flattened, that is read and written by lines.

    Attributes:
        builder: writes the code.
        data: points to the first entry.
        shape: the array's.
        kind: LLVM type of a line.
    """

    builder: Any
    data: Any
    shape: tuple[Value, ...]
    kind: Any

    def __getitem__(self, index: Value) -> Value:
        """Return the line that begins at an index."""
        return Value(self.builder, self.builder.load(self._line(index), align=self._size))

    def __setitem__(self, index: Value, line: Value) -> None:
        """Overwrite the line that begins at an index."""
        self.builder.store(line.value, self._line(index), align=self._size)

    def number(self, index: Value) -> Value:
        """Return one entry, in every place of a line."""
        entry = self.builder.load(self.builder.gep(self.data, [index.value]))
        none, whole = ir.Constant(self.kind, ir.Undefined), ir.IntType(32)
        first = self.builder.insert_element(none, entry, whole(0))
        order = ir.Constant(ir.VectorType(whole, self.kind.count), None)
        return Value(self.builder, self.builder.shuffle_vector(first, none, order))

    def variable(self, number: float) -> Variable:
        """Return a line to be changed, every place of it a number at first."""
        return Variable(Value(self.builder, _constant(self.kind, number)))

    @property
    def _size(self) -> int:
        return LINE // int(self.kind.count)

    def _line(self, index: Value) -> Any:
        place = self.builder.gep(self.data, [index.value])
        return self.builder.bitcast(place, self.kind.as_pointer())


class Variable:
    """A value that loops change; it becomes a register."""

    def __init__(self, start: Value) -> None:
        self._builder = start.builder
        self._place = cgutils.alloca_once_value(start.builder, start.value)

    @property
    def now(self) -> Value:
        """What it is at this place of the code."""
        return Value(self._builder, self._builder.load(self._place))

    @now.setter
    def now(self, value: Value) -> None:
        self._builder.store(value.value, self._place)


@contextmanager
def each(stop: Value) -> Iterator[Value]:
    """Write a loop: what is written within happens for each index from 0 on, less than ``stop``."""
    with cgutils.for_range(stop.builder, stop.value) as loop:
        yield Value(stop.builder, loop.index)


def kernel(write: Callable[..., None]) -> Any:
    """Return a function for numba, its code written by ``write``.

    Arguments that are arrays, all contiguous and of one type of numbers, become :class:`Lines`;
    integers become :class:`Value`.
    """

    def typed(typing: Any, *arguments: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            dtype = next(kind.dtype for kind in arguments if isinstance(kind, types.Array))
            line = ir.VectorType(context.get_value_type(dtype), LINE * 8 // dtype.bitwidth)

            def wrapped(kind: Any, value: Any) -> Lines | Value:
                if not isinstance(kind, types.Array):
                    return Value(builder, value)
                array = context.make_array(kind)(context, builder, value)
                shape = cgutils.unpack_tuple(builder, array.shape)
                return Lines(builder, array.data, tuple(Value(builder, n) for n in shape), line)

            write(*map(wrapped, arguments, given))
            return context.get_dummy_value()

        return types.void(*arguments), build

    first = inspect.Parameter("typing", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    others = inspect.signature(write).parameters.values()
    typed.__signature__ = inspect.Signature([first, *others])  # type: ignore[attr-defined]
    typed.__name__, typed.__doc__ = write.__name__, write.__doc__
    return intrinsic(typed)


def of_number(write: Callable[[Value], Value]) -> Any:
    """Return a function of one number for numba, its code written by ``write``."""

    @intrinsic  # type: ignore[untyped-decorator]
    def typed(typing: Any, x: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return write(Value(builder, given[0])).value

        return x(x), build

    return typed
