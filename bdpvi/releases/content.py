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
TYPES = ("float64", "float32", "float16", "bfloat16")
"""Torch's types of the numbers of a file; the first one is the usual one."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A release's file without its numbers.

    Attributes:
        format: format of the file.
        receipt, feature_names, preprocessing: as in :class:`bdpvi.Release`.
        model: the model, if JSON can describe it.
        estimate, guide: as in :class:`bdpvi.Release`; files of earlier versions have none.
        types: of the numbers that are not float64, by their names, such as "latents.w".
    """

    format: int = RELEASE_FORMAT
    receipt: Receipt
    model: Known | None
    feature_names: tuple[str, ...]
    preprocessing: Mapping[str, Any]
    estimate: Estimate | None = None
    guide: Gaussian | None = None
    types: Mapping[str, str] = field(default_factory=dict, metadata={"absent": {}})

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
