"""What a request refuses, before a row is read."""

from __future__ import annotations

from collections.abc import Sequence

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.estimates import Purchase
from bdpvi.datasets.weights import TAKEN_BY
from bdpvi.models.kinds import MIXED, OfClasses
from bdpvi.models.mixed import FEWEST_GROUPS
from bdpvi.score.reading import ANY, NAMES, NUMBERS, UNUSED
from bdpvi.tables.request import Request


def check(asked: Request) -> None:
    """Refuse options that do not go together.

    Raises:
        ValueError: naming the option and its value.
    """
    validate.epsilon(asked.epsilon)
    validate.probability("delta", asked.delta)
    validate.positive_int("draws", asked.number)
    if not isinstance(asked.draws, int) and (asked.intervals or asked.model or asked.bayesian):
        raise ValueError(
            f"draws={asked.draws}: draws of the posterior with a worst case are for logistic "
            "regression without intervals; give a number"
        )
    if getattr(asked.guarantee, "epsilon", None) is not None:
        raise ValueError(
            f"guarantee={asked.guarantee!r} is for bdpvi.release of a fit; "
            "draws=PosteriorDraws() (--draws-of-the-posterior) gives draws behind a gate here"
        )
    _check_labels(asked)
    _check_weights(asked)
    _check_group(asked)
    if asked.model is not None:
        _check_model(asked)
    elif asked.positive in (None, "") or read_cell(asked.positive, asked.target_type)[2]:
        raise ValueError(
            f"positive={asked.positive!r}: say which value of {asked.target!r} counts as 1; it "
            "is not taken from the rows. For counts, numbers or several classes give a model "
            "(model=, --model)"
        )
    for name, kinds in (("exposure", "poisson or negative-binomial"), ("event", "survival")):
        if (value := getattr(asked.public, name)) and asked.model is None:
            what = "counts" if name == "exposure" else "times"
            raise ValueError(
                f"{name}={value!r}: it goes with a model of {what} (model=, --model {kinds})"
            )
    if (asked.intervals or asked.model is not None) and asked.bayesian:
        what = "intervals" if asked.model is None else f"{asked.model.kind} regression"
        assert asked.guarantee is not None
        raise ValueError(f"guarantee={asked.guarantee.name}: a release for {what} has a worst case")


def _check_weights(asked: Request) -> None:
    """Refuse weights of rows where they would be ignored."""
    public = asked.public
    given = {
        "model": asked.model if asked.uses_dpvi else None,
        "guarantee": asked.guarantee if asked.bayesian else None,
        "draws": None if isinstance(asked.draws, int) else asked.draws,
        "from_data": public.from_data or None,
    }
    for name, value in given.items() if public.weights else ():
        if value is not None:
            raise ValueError(
                f"weights={public.weights!r}: none go with {name}={value!r:.80}. {TAKEN_BY} take "
                "them, with public or private bounds"
            )


def _check_group(asked: Request) -> None:
    """Refuse a mixed model where there is none, and options that would be ignored."""
    public, model = asked.public, asked.model
    if not (name := public.group):
        return
    what = "logistic" if model is None else model.kind
    if what not in MIXED:
        raise ValueError(f"group={name!r}: mixed models are {', '.join(MIXED)}, not {what}")
    if asked.groups_are_features and public.hashed:
        raise ValueError(f"group={name!r}: hashed=True would mix groups; leave it out")
    columns = () if asked.constants is None else asked.constants.columns
    levels = [getattr(one, "categories", ()) for one in columns if one.name == name]
    if asked.groups_are_features and levels and len(levels[0]) < FEWEST_GROUPS:
        raise ValueError(
            f"group={name!r}: there are {several(len(levels[0]), 'group')} of {name!r}, and τ "
            f"needs {FEWEST_GROUPS} at least: make it a category (leave group out)"
        )
    given = {
        "intervals": asked.intervals or None,
        "guarantee": asked.guarantee if asked.bayesian else None,
        "draws": None if isinstance(asked.draws, int) else asked.draws,
        "exposure": public.exposure or getattr(model, "exposure", None),
        "weights": public.weights or None,
        "from_data": public.from_data or None,
        "rows": public.rows if asked.groups_are_records else None,
    }
    for option, value in given.items():
        if value not in (None, ""):
            raise ValueError(
                f"{option}={value!r:.80}: a mixed model (group={name!r}) takes none; leave it out"
            )


def _check_labels(asked: Request) -> None:
    """Refuse a positive value or classes that the target's declared levels lack."""
    type_ = asked.target_type
    if type_ is None or type_.names is None:
        return
    for value in [asked.positive] if asked.model is None else asked.public.classes:
        if value not in (None, "") and (label := asked.label(value)) not in type_.names:
            name = "positive" if asked.model is None else "classes"
            raise ValueError(
                f"{name}={value!r}: types declares {type_.names} for the target "
                f"{asked.target!r}, and not {label or value!r}"
            )


def _check_model(asked: Request) -> None:
    """Refuse options that do not suit the model."""
    model, public, labels = asked.model, asked.public, asked.labels
    assert model is not None
    given = {"positive": asked.positive, "base_rate": public.base_rate}
    for name, value in (given | {"from_data": public.from_data}).items():
        if value not in (None, "", False):
            raise ValueError(
                f"{name}={value!r}: a {model.kind} regression takes none; leave it out"
            )
    wanted = model.classes if isinstance(model, OfClasses) else 0
    if len(labels) != wanted or len({*labels} - {""}) != wanted:
        raise ValueError(
            f"classes={[*public.classes]!r}: a {model.kind} regression wants "
            + (f"{wanted} different values of {asked.target!r}" if wanted else "none")
        )
    if public.event and model.target != "time":
        raise ValueError(
            f"event={public.event!r}: it goes with a survival regression (model=, --model "
            f"survival), and not with a {model.kind} one; leave it out"
        )
    if public.exposure and getattr(model, "exposure", 0) is not None:
        raise ValueError(
            f"exposure={public.exposure!r}: it goes with a model of counts that has no exposure "
            f"of its own, not with {model!r:.80}"
        )


def purchase(asked: Request, header: Sequence[str]) -> Purchase:
    """Return the private preprocessing that a table with this header needs.

    Raises:
        ValueError: if an option, which it names, names a missing column.
    """
    names, public = [str(name).strip() for name in header], asked.public
    if public.exposure and (public.exposure == asked.target or public.exposure not in names):
        raise ValueError(f"exposure={public.exposure!r} must be a column other than the target")
    if public.group and (public.group == asked.target or public.group in public.drop):
        raise ValueError(f"group={public.group!r} must be neither the target nor left out")
    if asked.groups_are_features and public.group not in names:
        raise ValueError(f"group={public.group!r} must be a column; they are {', '.join(names)}")
    used = {factor.column for term in asked.terms for factor in term}
    used |= {asked.target, public.exposure, *public.drop, *public.categorical}
    used |= {column.name for column in asked.constants.columns} if asked.constants else set()
    if public.weights in used - {""} or public.weights not in ("", *names):
        raise ValueError(
            f"weights={public.weights!r} must be a column of numbers, and neither target nor "
            f"feature; the columns are {', '.join(names)}"
        )
    if asked.model is not None and asked.model.target == "time":
        _check_event(asked, names)
    drop, numbers, categories = _kinds(asked, names)
    return Purchase.of(
        header,
        target=asked.target,
        public=asked.constants,
        drop=drop,
        categorical=[*public.categorical, *categories],
        numeric=[*public.numeric, *numbers],
        hashed=bool(public.hashed),
    )


def _check_event(asked: Request, names: Sequence[str]) -> None:
    """Refuse what does not say whether a time is that of an event."""
    name = asked.public.event
    if not name or name == asked.target or name not in names:
        raise ValueError(
            f"event={name!r} must be a column other than the time {asked.target!r} (event=, "
            f"--event): the one that says whether it is the event's; the columns are {names!r:.200}"
        )
    type_ = asked.public.read_by.get(name)
    if type_ is not None and type_.kind not in ("boolean", *NUMBERS, ANY):
        raise ValueError(
            f"event={name!r}: types declares the kind {type_.kind}; declare a boolean, with the "
            "level for no and that for yes"
        )


def _kinds(asked: Request, names: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the columns to leave out, and those that types declare as numbers or names."""
    public = asked.public
    types = {} if public.types is None else public.types.of_header(names)
    kinds = {name: one.kind for name, one in types.items() if name in names}
    for argument, some, others in (
        ("numeric", public.numeric, NAMES),
        ("categorical", public.categorical, NUMBERS),
    ):
        if both := [name for name in some if kinds.get(name) in others]:
            raise ValueError(f"{argument} names {both[0]!r}, whose kind is {kinds[both[0]]}")
    out = [*public.left_out, *(n for n, kind in kinds.items() if kind in UNUSED)]
    out = [name for name in dict.fromkeys(out) if name != asked.target or name in public.drop]
    used = {name: kind for name, kind in kinds.items() if name not in {*out, asked.target}}
    numbers, categories = (
        [name for name, kind in used.items() if kind in some] for some in (NUMBERS, NAMES)
    )
    return out, numbers, categories
