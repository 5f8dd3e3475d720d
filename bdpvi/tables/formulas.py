"""The formula of a request, read by its table's header and by what is declared of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bdpvi.datasets.columns import OneHot
from bdpvi.datasets.formula import read_formula
from bdpvi.datasets.terms import Plain
from bdpvi.tables.request import Request


def with_terms(asked: Request, header: Sequence[str]) -> Request:
    """Return the request with its formula's terms, of these columns alone.

    Raises:
        ValueError: naming what the formula, the columns or what is declared of them lack.
    """
    if not asked.formula or asked.terms:
        return asked
    public, known = asked.public, asked.constants
    if public.from_data:
        raise ValueError(
            f"formula={asked.formula!r:.200}: it needs public or private bounds; leave out "
            "from_data (--from-data)"
        )
    columns = {column.name: column for column in known.columns} if known else {}
    levels = {n: one.categories for n, one in columns.items() if isinstance(one, OneHot)}
    read = read_formula(asked.formula, header, levels)
    if read.exposure and public.exposure not in ("", read.exposure):
        raise ValueError(f"exposure={public.exposure!r}: the formula's is {read.exposure!r}")
    if names := [name for name in read.numbers if public.kinds.get(name) == "category"]:
        raise ValueError(f"formula={asked.formula!r:.200}: {names[0]!r} is a category")
    if public.event and public.event in read.columns:
        raise ValueError(f"event={public.event!r} is in the formula: it belongs to the target")
    exposure = public.exposure or read.exposure
    terms = read.terms
    if exposure and exposure not in read.columns:
        terms = (*terms, (Plain(exposure),))
    used = {*read.columns, exposure, asked.target}
    constants = public.constants
    if constants is not None:
        kept = tuple(column for column in constants.columns if column.name in used)
        constants = replace(constants, columns=kept) if kept else None
    made = replace(
        asked,
        terms=terms,
        public=replace(
            public,
            constants=constants,
            drop=tuple(name for name in header if name not in {*used, public.weights}),
            numeric=(*public.numeric, *(n for n in read.numbers if n not in public.kinds)),
            categorical=[name for name in public.categorical if name in used],
            exposure=exposure,
        ),
    )

    for factor in (factor for term in terms for factor in term):
        factor.check(columns.get(factor.column))
    return made
