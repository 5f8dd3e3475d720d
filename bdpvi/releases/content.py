"""The checked content of a release's file: any other content is a ValueError."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bdpvi._ground import schema
from bdpvi.models.contract import Model
from bdpvi.models.kinds import Known
from bdpvi.releases.estimate import Estimate, Gaussian
from bdpvi.releases.receipt import Receipt

if TYPE_CHECKING:
    from bdpvi.datasets.encoding import Encoding

RELEASE_FORMAT = 5


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A release's file without its numbers.

    Attributes:
        format: format of the file.
        receipt, feature_names, preprocessing: as in :class:`bdpvi.Release`.
        model: the model, if JSON can describe it.
        estimate, guide: as in :class:`bdpvi.Release`; files of earlier versions have none.
    """

    format: int = RELEASE_FORMAT
    receipt: Receipt
    model: Known | None
    feature_names: tuple[str, ...]
    preprocessing: Mapping[str, Any]
    estimate: Estimate | None = None
    guide: Gaussian | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Shared:
        """Read the file's content apart from the numbers.

        Raises:
            ValueError: if an entry, which it names, is missing or has a wrong type or value.
        """
        if content.get("format") != RELEASE_FORMAT:
            raise ValueError(
                f"format must be {RELEASE_FORMAT}, got {content.get('format')!r}: another version "
                "of bdpvi made it; release again"
            )
        given = {"estimate": None, "guide": None, **content}
        if isinstance(guide := given["guide"], Mapping):
            given["guide"] = {"arguments": [], **guide}  # earlier versions took a single x
        return schema.from_json(cls, given)


@dataclass(frozen=True, eq=False)
class Published:
    """What a release consists of; :class:`bdpvi.Release` has the meaning of each."""

    samples: Tensor
    latents: Mapping[str, Tensor]
    receipt: Receipt
    model: Model
    feature_names: tuple[str, ...]
    preprocessing: Mapping[str, object]
    estimate: Estimate | None = None
    guide: Gaussian | None = None
    parameters: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def encoding(self) -> Encoding | None:
        """How raw columns become features; None if the training data had features already.

        Raises:
            ValueError: if it was read from a file that was changed.
        """
        from bdpvi.datasets.encoding import Encoding

        written = self.preprocessing.get("encoding")
        return None if written is None else Encoding.from_dict(written)  # type: ignore[arg-type]


ORIGINS = {
    "format": "a constant",
    "samples": "the mechanism's output",
    "latents": "the samples, as the model's latent variables",
    "receipt.about": "the owner's description of the preprocessing bounds, what was declared, "
    "the source of the number of rows behind the settings, the part of the table "
    "used, and what the released weights show: that few columns matter, or a factor",
    "receipt.source": "how ε was found: one of four constants; and how many targets were "
    "refused before by looking at the records, which no ε covers",
    "receipt.together": "a constant and the ε of works by public settings, in this process; "
    "which of them were on the same rows is read from these, at an overlap of half",
    "receipt.draws": "the owner's choice",
    "receipt.temperature": "the owner's choice; from public settings; or from the data, on a grid",
    "receipt.noise_scale": "the guide's public number and the temperature",
    "receipt.step": "public settings and the temperature",
    **{
        f"receipt.{bound}.{name}": origin
        for bound in ("worst_case", "bayesian", "group", "typical")
        for name, origin in {
            "kind": "a constant",
            "epsilon": "the target; or from public settings; or, if not certified, from the "
            "data, up to two digits",
            "delta": "the owner's choice",
            "by": "names of methods: constants",
            "relation": "the neighbours that were asked for",
            "unit": "the owner's choice, who is protected",
            "observer": "a constant",
            "reliable": "from the data, one bit, for a Bayesian ε that is not certified only",
            "reason": "empty",
            "assumptions": "constants: which of them hold follows from how the table was read",
            "distance": "empty",
            "rounding": "zero",
            "evidence": "empty",
        }.items()
    },
    "receipt.group.share": "the owner's choice",
    "receipt.group.confidence": "from δ, or the owner's choice",
    "receipt.typical.share": "from the number of records: one of three constants",
    "receipt.typical.confidence": "a constant",
    "estimate": "the mechanism's output, or null",
    "guide": "the mechanism's output, or null",
    "parameters": "the mechanism's output; none for most models",
    "model": "hyper-parameters, chosen without looking at the data",
    "feature_names": "public preprocessing bounds",
    "preprocessing": "public preprocessing bounds, and what was declared",
}
"""The source of each field of a release's file. It contains nothing else."""
