"""What is said of a program of the user's that fails, or of a site that does not fit."""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path

import pyro
import torch

from bdpvi.models.misfits import LastSite, Site

_WORDS = 100
"""Most characters of an error's message that are repeated."""


def program_error(name: str, on: str, last: LastSite, error: Exception) -> ValueError:
    """Return the refusal of a program that raises: the site, the line, and the remedy."""
    first = (str(error).splitlines() or [""])[0]
    place = f", at or after site {last.name!r}" if last.name else ""
    said = first if len(first) <= _WORDS else f"{first[:_WORDS].rsplit(' ', 1)[0]} ..."
    return ValueError(
        f"{name} raised {type(error).__name__} on {on}{place}{line_of(error)} ({said}): "
        f"{_remedy(error, first)}. Nothing was charged"
    )


def _remedy(error: Exception, first: str) -> str:
    frame = _own_frame(error)
    line = "" if frame is None else frame.line or ""
    if isinstance(error, IndexError) and "used as indices" in first:
        return (
            "hand indices over as a torch tensor of whole numbers; arrays and frames become float64"
        )
    if "does not require grad" in first:
        return "let the guide's draws follow from its parameters, without .detach() or .data"
    if "pack_" in line and "sequence" in line:
        return _PACKED
    if any(words in first for words in _LOOKS):
        return next((found for form, found in _BY_LINE if re.search(form, line)), _ELSE)
    return next((found for form, found in _BY_ERROR if re.search(form, first)), _ELSE)


_ELSE = (
    "write it so that it runs for a single record, with torch operations alone: no .item(), no "
    "if on a tensor's value"
)
_PACKED = (
    "run the layer on the padded rows without packing, and weigh its outputs by a mask, such as "
    "torch.arange(n) == lengths.unsqueeze(-1) - 1 for the last one"
)
_MASKED = (
    "keep every entry, and weigh it by the mask: torch.where(mask, x, 0.0) in place of x[mask], "
    "and x = torch.where(mask, value, x) in place of x[mask] = value"
)
_TENSOR = (
    "keep it a tensor, and compute with torch alone: no .item(), float(), .tolist(), NumPy or SciPy"
)
_LOOKS = (
    *(".item()", "dynamic shape", "differently shaped", "data pointer", "numpy()"),
    *("aten::equal", "torch.allclose", "has to be greater than 0", "vmap over torch.tensor"),
)
"""Words of errors of operations that look at a record's values."""
_BY_LINE = (
    (r"one_hot", "write torch.eye(n)[k] in place of one_hot(k, n), which looks at its values"),
    (
        r"bincount|histc|unique",
        "count by comparing: (x.unsqueeze(-1) == torch.arange(n)).sum(-2) counts each value",
    ),
    (
        r"\barange\(|\brange\(|zeros\(|ones\(|repeat_interleave|\[[^]]*:\w|split\(",
        "take the largest size, and weigh the entries by a mask such as torch.arange(n) < k",
    ),
    (r"nonzero|argwhere|where\(|masked_select|\[[^]]*[<>=~]", _MASKED),
    (r"\.item\(|\bfloat\(|\bint\(|tolist|numpy|\bnp\.|scipy|math\.", _TENSOR),
    (
        r"\b(if|while|assert|and|or|not|any|all|equal|allclose|max|min|sorted)\b",
        "choose by torch.where(condition, a, b), as each record has a condition of its own; check "
        "a table before training, not in the model",
    ),
    (
        r"\[",
        "let a tensor be indexed by it, as in torch.tensor([1.0, 2.0])[k], not a list or a dict",
    ),
)
"""By the user's own line."""
_BY_ERROR = (
    (
        r"dtype|data type|scalar type",
        "give all tensors one type of numbers: latents have that of their priors' arguments, such "
        "as dist.Normal(x.new_zeros(2), 1.0), and layers that of .to(x.dtype)",
    ),
    (
        r"inplace|in-place|out-of-place|doesn't match the broadcast shape",
        "write it out of place, as torch.where, torch.stack, torch.cat, scatter and index_put do, "
        "not as w[0] = ..., += or scatter_",
    ),
    (
        r"size mismatch|must match|shapes cannot|broadcast",
        "give guide and model tensors whose shapes fit each other and a single record",
    ),
    (r"requires_grad_", "leave requires_grad_() out: gradients are those of the parameters"),
)


_LIBRARIES = (
    *(str(Path(str(one.__file__)).parent) for one in (os, torch, pyro)),
    str(Path(__file__).parents[1]),
)


def line_of(error: Exception) -> str:
    """Return the last line of the user's own on the way to an error, in words."""
    frame = _own_frame(error)
    if frame is None:
        return ""
    text = f" `{frame.line}`" if frame.line else ""
    return f", line {frame.lineno} of {Path(frame.filename).name}{text}"


def _own_frame(error: Exception) -> traceback.FrameSummary | None:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<frozen"))]
    return own[-1] if own else None


def words_of_site(site: Site) -> str:
    """Return what a site is, and its name."""
    kind = "observed" if site["is_observed"] else "latent"
    return f"{kind} site {site['name']!r}"
