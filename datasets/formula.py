"""Formulas of models, in the grammar of formulaic, as terms of columns; no part of one is run.

formulaic's parser splits a formula into terms, and ours reads each call as a syntax tree: what is
not listed here is refused by name. No transform reads a row.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bdpvi.datasets.columns import some
from bdpvi.datasets.terms import Factor, Log, Plain, Power, Spline, Term

_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_INSTEAD = {
    "poly": "write x + I(x**2) + I(x**3)",
    "cr": "write bs(x, df=4), with evenly spaced knots",
    "cc": "write bs(x, df=4), with evenly spaced knots",
    "cs": "write bs(x, df=4), with evenly spaced knots",
    **dict.fromkeys(
        ("scale", "center", "standardize"),
        "numbers are standardised by their public or private bounds already; write x",
    ),
}
"""What a transform that reads rows is replaced by."""
_KNOWN = "x, I(x**2), log(x), bs(x, df=4), C(x), C(x, Treatment('level')) and offset(log(x))"


class Formula(NamedTuple):
    """A formula that was read.

    Attributes:
        target: the column to predict; "" if the formula has only a right-hand side.
        terms: its terms.
        numbers: columns that it uses as numbers only.
        exposure: the column whose logarithm is the offset; "" if there is none.
    """

    target: str
    terms: tuple[Term, ...]
    numbers: tuple[str, ...]
    exposure: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its terms."""
        return tuple(dict.fromkeys(factor.column for term in self.terms for factor in term))


def target_of(formula: str) -> str:
    """Return the column on a formula's left-hand side; "" without one.

    Raises:
        ValueError: if the left-hand side is more than the name of a column.

    >>> target_of("sick ~ age * ward"), target_of("age * ward")
    ('sick', '')
    """
    left, tilde, _ = formula.partition("~")
    if not tilde:
        return ""
    named = re.fullmatch(r"\s*(?:`([^`]+)`|([^\s`()+*:^-]+))\s*", left)
    if not named:
        raise ValueError(
            f"formula={formula!r:.200}: the left-hand side must be the name of one column"
        )
    return named[1] or named[2]


def read_formula(
    formula: str, header: Sequence[str], levels: Mapping[str, Sequence[str]] | None = None
) -> Formula:
    """Return a formula's terms.

    Args:
        formula: such as ``"sick ~ age * ward + bs(bmi, df=4)"``, or its right-hand side.
        header: the names of the table's columns.
        levels: public levels of categories, for ``C()``.

    Raises:
        ValueError: naming the part of it that cannot be used, and what to write instead.
        ImportError: without the extra ``formula``.

    >>> read = read_formula("sick ~ age * ward + I(age**2)", ["sick", "age", "ward"])
    >>> [[factor.column for factor in term] for term in read.terms]
    [['age'], ['ward'], ['age', 'ward'], ['age']]
    """
    target, right = target_of(formula), formula.partition("~")[2] or formula
    others = [name for name in header if name != target]
    terms, numbers, exposure = [], [], ""
    for parts in _terms(formula, right, others):
        if len(parts) == 1 and (column := _offset(parts[0], others, formula)):
            if exposure:
                raise ValueError(f"formula={formula!r:.200}: it has more than one offset")
            exposure = column
            continue
        factors = tuple(_factor(part, others, levels or {}, formula) for part in parts)
        names = [factor.column for factor in factors]
        if len({*names}) < len(names):
            raise ValueError(
                f"formula={formula!r:.200}: the term {':'.join(parts)} has a column twice; write "
                "I(x**2), or leave one out"
            )
        terms.append(factors)
        numbers += [f.column for f in factors if not isinstance(f, Plain)]
    if not terms:
        raise ValueError(f"formula={formula!r:.200}: it has no term but the intercept")
    if exposure:
        terms.append((Plain(exposure),))
    return Formula(target, _coded(terms), tuple(dict.fromkeys(numbers)), exposure)


def _terms(formula: str, right: str, names: Sequence[str]) -> list[list[str]]:
    """Return the texts of the factors of each term; the intercept has none and must be there."""
    try:
        from formulaic.parser import DefaultFormulaParser  # late: it loads pandas
    except ImportError as error:
        raise ImportError("formulaic is not installed: pip install 'bdpvi[formula]'") from error
    if re.search(r"\([^()]*\|", right):
        raise ValueError(
            f"formula={formula!r:.200}: effects of groups, as (1 | clinic), are an option: --model "
            "mixed-linear --group clinic, or in Python public=Public(group='clinic')"
        )
    parser = DefaultFormulaParser(include_intercept=True)
    try:
        found = parser.get_terms(right, context={"__formulaic_variables_available__": [*names]})
        structure = found._structure
        if {*structure} != {"root"} or isinstance(structure["root"], tuple):
            raise ValueError("one right-hand side is needed, without |")
        each = [[_text(factor) for factor in term.factors] for term in structure["root"]]
    except Exception as error:  # of formulaic's own kinds, and SyntaxError
        why = _COLOURS.sub("", str(error)).partition("\n")[0]
        raise ValueError(f"formula={formula!r:.200}: it cannot be read: {why:.200}") from None
    if ["1"] not in each:
        raise ValueError(
            f"formula={formula!r:.200}: every model here has an intercept; leave out - 1 and 0"
        )
    return [parts for parts in each if parts != ["1"]]


def _text(factor: Any) -> str:
    """Return a factor's text; a column's name is quoted by backticks."""
    lookup = factor.eval_method.value == "lookup"
    return f"`{factor.expr}`" if lookup else str(factor.expr)


def _tree(text: str, formula: str) -> tuple[ast.expr, dict[str, str]]:
    """Return a factor's syntax tree, and the columns behind the names in it."""
    names: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        names[key := f"column_{len(names)}_"] = found[1]
        return key

    try:
        return ast.parse(re.sub("`([^`]+)`", named, text), mode="eval").body, names
    except SyntaxError as error:
        raise ValueError(f"formula={formula!r:.200}: {text!r:.80} cannot be read") from error


def _offset(text: str, header: Sequence[str], formula: str) -> str:
    """Return the exposure of an offset; "" of another term."""
    tree, names = _tree(text, formula)
    match tree:
        case ast.Call(func=ast.Name("offset"), args=[inner], keywords=[]):
            if (column := _logged(inner)) is None:
                raise ValueError(
                    f"formula={formula!r:.200}: {text!r:.80}: only offset(log(x)) is known, the "
                    "exposure of a count"
                )
            return _column(names.get(column, column), header, formula)
    return ""


def _logged(tree: ast.expr) -> str | None:
    """Return the name x of log(x) or np.log(x); None of anything else."""
    match tree:
        case ast.Call(
            func=ast.Name("log") | ast.Attribute(ast.Name("np"), "log"),
            args=[ast.Name(name)],
            keywords=[],
        ):
            return name
    return None


def _column(name: str, header: Sequence[str], formula: str) -> str:
    if name not in header:
        raise ValueError(
            f"formula={formula!r:.200}: {name!r} is not a column of the table: "
            f"{some(tuple(header), 20)}"
        )
    return name


def _factor(
    text: str, header: Sequence[str], levels: Mapping[str, Sequence[str]], formula: str
) -> Factor:
    """Return a factor from its text."""
    tree, names = _tree(text, formula)

    def column(name: str) -> str:
        return _column(names.get(name, name), header, formula)

    if (logged := _logged(tree)) is not None:
        return Log(column(logged))
    match tree:
        case ast.Name(name):
            return Plain(column(name))
        case ast.Call(
            func=ast.Name("I"),
            args=[ast.BinOp(ast.Name(name), ast.Pow(), ast.Constant(int(degree)))],
            keywords=[],
        ) | ast.BinOp(ast.Name(name), ast.Pow(), ast.Constant(int(degree))):
            return Power(column(name), degree)
        case ast.Call(func=ast.Name("bs"), args=[ast.Name(name), *given], keywords=keywords):
            return _spline(column(name), text, given, keywords, formula)
        case ast.Call(func=ast.Name("C"), args=[ast.Name(name), *given], keywords=[]):
            return _levels(column(name), text, given, levels, formula)
        case ast.Call(func=ast.Name(name)) if name in _INSTEAD:
            raise ValueError(f"formula={formula!r:.200}: {name}() reads the rows; {_INSTEAD[name]}")
    raise ValueError(f"formula={formula!r:.200}: {text!r:.80} is not known; known are {_KNOWN}")


def _spline(
    column: str,
    text: str,
    given: Sequence[ast.expr],
    keywords: Sequence[ast.keyword],
    formula: str,
) -> Spline:
    """Return bs(x, df=None, knots=None, degree=3), as formulaic's signature has it."""
    wanted = dict(zip(("df", "knots", "degree"), given, strict=False))
    wanted |= {str(one.arg): one.value for one in keywords}
    try:
        values = {name: ast.literal_eval(one) for name, one in wanted.items()}
        degree, knots = values.pop("degree", 3), values.pop("knots", None) or ()
        size = values.pop("df", None) or degree + len(knots)
        if values or len(given) > 3:
            raise ValueError(f"arguments are df, knots and degree, not {[*values]}")
        return Spline(column, size, degree, tuple(float(knot) for knot in knots))
    except (ValueError, TypeError, SyntaxError) as error:
        raise ValueError(f"formula={formula!r:.200}: {text!r:.80}: {error}") from error


def _levels(
    column: str,
    text: str,
    given: Sequence[ast.expr],
    levels: Mapping[str, Sequence[str]],
    formula: str,
) -> Plain:
    """Return C(x) or C(x, Treatment("level")) of a column with public levels."""
    if column not in levels:
        raise ValueError(
            f"formula={formula!r:.200}: {text!r:.80} would read its levels from the rows; give "
            f"them (--constants, or bdpvi table), or write {column}: --categorical {column} counts "
            "its levels privately"
        )
    match [*given]:
        case []:
            return Plain(column)
        case [
            ast.Call(
                func=ast.Name("Treatment") | ast.Attribute(ast.Name("contr"), "treatment"),
                args=args,
                keywords=keywords,
            )
        ]:
            match [*args, *(k.value for k in keywords if k.arg in ("reference", "base"))]:
                case [ast.Constant(str(level))] if level in levels[column]:
                    return Plain(column, level)
    raise ValueError(
        f"formula={formula!r:.200}: {text!r:.80}: contrasts are C(x, Treatment('level')), with a "
        f"level of {some(tuple(levels[column]))}"
    )


def _coded(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Return the terms with all levels of a category where its other factors stand nowhere alone.

    Of ``a * b`` the product has no reference levels, as in R: they are in the terms a and b. The
    reference level of a column is the same in all terms.
    """
    plain = (f for term in terms for f in term if isinstance(f, Plain))
    references = {f.column: f.reference for f in plain if f.reference}
    known = {frozenset((type(f), f.column) for f in term) for term in terms}
    made = []
    for term in terms:
        factors: list[Factor] = []
        for factor in term:
            if isinstance(factor, Plain) and len(term) > 1:
                rest = frozenset((type(f), f.column) for f in term if f is not factor)
                every = rest not in known
                factor = Plain(factor.column, references.get(factor.column, ""), every)
            elif isinstance(factor, Plain):
                factor = Plain(factor.column, references.get(factor.column, ""))
            factors.append(factor)
        made.append(tuple(factors))
    return tuple(made)
