"""What is said of a program of the user's that fails, or of a site that does not fit."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pyro
import torch

from bdpvi.models.misfits import LastSite, Site


def program_error(name: str, on: str, last: LastSite, error: Exception) -> ValueError:
    """Return the refusal of a program that raises: the site, the line, and the remedy."""
    first = (str(error).splitlines() or [""])[0]
    place = f", at or after site {last.name!r}" if last.name else ""
    return ValueError(
        f"{name} raised {type(error).__name__} on {on}{place}{line_of(error)} ({first}): "
        f"{_remedy(error, first)}. Nothing was charged"
    )


def _remedy(error: Exception, first: str) -> str:
    if isinstance(error, IndexError) and "used as indices" in first:
        return (
            "hand indices over as a torch tensor of whole numbers; arrays and frames become float64"
        )
    if "does not require grad" in first:
        return "let the guide's draws follow from its parameters, without .detach() or .data"
    if "modified inplace" in first or "in-place" in first:
        return "write it out of place, as torch.where and torch.stack do, not as w[0] = ..."
    if any(word in first for word in ("size mismatch", "must match", "shapes cannot", "broadcast")):
        return "give guide and model tensors whose shapes fit each other and a single record"
    return (
        "write it so that it runs for a single record, with torch operations alone: no .item(), no "
        "if on a tensor's value"
    )


_LIBRARIES = (
    *(str(Path(str(one.__file__)).parent) for one in (os, torch, pyro)),
    str(Path(__file__).parents[1]),
)


def line_of(error: Exception) -> str:
    """Return the last line of the user's own on the way to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<frozen"))]
    return f", line {own[-1].lineno} of {Path(own[-1].filename).name}" if own else ""


def words_of_site(site: Site) -> str:
    """Return what a site is, and its name."""
    kind = "observed" if site["is_observed"] else "latent"
    return f"{kind} site {site['name']!r}"
