"""Operations that SVI takes and a gradient of single records does not: every remedy works.

A program with the operation is trained by SVI, and refused by PrivateSVI; as the refusal has it, it
is the same program: without noise it follows SVI of the first one.
"""

from __future__ import annotations

import linecache
import re
import textwrap
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from packaging.version import Version
from pyro.infer.autoguide import AutoNormal
from pyro_features import NEAR, Row, trained, trained_privately, without_privacy
from scipy import special
from torch import nn

N, STEPS = 12, 2
DRAWN = torch.Generator().manual_seed(2)
X = torch.randn(N, 3, generator=DRAWN, dtype=torch.float64)
Y = torch.randn(N, generator=DRAWN, dtype=torch.float64)
K = torch.arange(N) % 3
DATA = (X, K, K.flip(0) % 3 + 1, Y)


class Case(NamedTuple):
    """An operation.

    Attributes:
        bad: lines of a model that end with the mean of a record's target.
        says: words of the remedy.
        good: the lines by that remedy.
    """

    bad: str
    says: str
    good: str


TENSOR, CHOOSE, MASK = "keep it a tensor", "choose by torch.where", "keep every entry, and weigh it"
SIZE, PLACE, COUNT = "take the largest size", "write it out of place", "count by comparing"
PACK, INDEX = "run the layer on the padded rows", "let a tensor be indexed by it"
EACH = "torch.stack([{} for row in x])"
CASES = {
    # a number is read out of a tensor
    ".item()": Case("w.sum() * x[0, 0].item() * 0 + x @ w", TENSOR, "x @ w"),
    ".item() of each": Case(
        "torch.tensor([v.item() for v in x[:, 0]]) * w[0]", TENSOR, "x[:, 0] * w[0]"
    ),
    "float()": Case(EACH.format("float(row[0]) * w[0]"), TENSOR, "x[:, 0] * w[0]"),
    "int() of an index": Case("torch.stack([w[int(v)] for v in k])", TENSOR, "w[k]"),
    ".tolist()": Case("torch.tensor(x[:, 0].tolist()) * w[0]", TENSOR, "x[:, 0] * w[0]"),
    ".numpy()": Case("torch.from_numpy(np.exp(x.numpy())) @ w", TENSOR, "x.exp() @ w"),
    "np.asarray": Case("torch.as_tensor(np.asarray(x) ** 2) @ w", TENSOR, "x**2 @ w"),
    "SciPy": Case("torch.as_tensor(special.expit(x.numpy())) @ w", TENSOR, "x.sigmoid() @ w"),
    "math": Case(EACH.format("math.exp(row[0]) * w[0]"), TENSOR, "x[:, 0].exp() * w[0]"),
    "round()": Case(EACH.format("round(row[0].item()) * w[0]"), TENSOR, "x[:, 0].round() * w[0]"),
    # what is computed depends on a value
    "if": Case(
        EACH.format("w[0] if row[0] > 0 else w[1]"), CHOOSE, "torch.where(x[:, 0] > 0, w[0], w[1])"
    ),
    "if, a statement": Case(
        "m = []\nfor row in x:\n if row[0] > 0:\n  m.append(w[0])\n else:\n  m.append(w[1])\n"
        "torch.stack(m)",
        CHOOSE,
        "torch.where(x[:, 0] > 0, w[0], w[1])",
    ),
    "and": Case(
        EACH.format("w[0] * (row[0] > 0 and row[1] > 0)"),
        CHOOSE,
        "w[0] * ((x[:, 0] > 0) & (x[:, 1] > 0))",
    ),
    "not": Case(EACH.format("w[0] * (not row[0] > 0)"), CHOOSE, "w[0] * ~(x[:, 0] > 0)"),
    "while": Case(
        "m = []\nfor v in k:\n i = 0\n while i < v: i = i + 1\n m.append(w[i])\ntorch.stack(m)",
        CHOOSE,
        "w[k]",
    ),
    "assert": Case("assert (k >= 0).all()\nx @ w", CHOOSE, "x @ w"),
    "if any": Case("if torch.isnan(x).any(): raise ValueError\nx @ w", CHOOSE, "x @ w"),
    "max()": Case(EACH.format("w[0] * max(row[0], row[1])"), CHOOSE, "w[0] * x[:, :2].amax(1)"),
    "sorted()": Case(EACH.format("torch.stack(sorted(row)) @ w"), CHOOSE, "x.sort(1)[0] @ w"),
    "torch.equal": Case(
        EACH.format("w[0] * torch.equal(row[0], row[0].abs())"), CHOOSE, "w[0] * (x[:, 0] >= 0)"
    ),
    "torch.allclose": Case(
        EACH.format("w[0] * torch.allclose(row[0], row[0].abs())"),
        CHOOSE,
        "w[0] * (x[:, 0] >= 0)",
    ),
    "a list by a value": Case(
        "table = [1.0, 2.0, 3.0]\ntorch.tensor([table[v] for v in k]) * w[0]",
        INDEX,
        "torch.tensor([1.0, 2.0, 3.0])[k] * w[0]",
    ),
    "a dict by a value": Case(
        "table = {0: 1.0, 1: 2.0, 2: 3.0}\ntorch.tensor([table[v.item()] for v in k]) * w[0]",
        TENSOR,
        "torch.tensor([1.0, 2.0, 3.0])[k] * w[0]",
    ),
    # how many entries there are depends on a value
    "x[mask]": Case(
        EACH.format("row[row > 0].sum() * w[0]"), MASK, "torch.where(x > 0, x, 0.0).sum(1) * w[0]"
    ),
    "masked_select": Case(
        EACH.format("torch.masked_select(row, row > 0).sum() * w[0]"),
        MASK,
        "torch.where(x > 0, x, 0.0).sum(1) * w[0]",
    ),
    "nonzero": Case(
        EACH.format("len(torch.nonzero(row > 0)) * w[0]"), MASK, "(x > 0).sum(1) * w[0]"
    ),
    "argwhere": Case(
        EACH.format("len(torch.argwhere(row > 0)) * w[0]"), MASK, "(x > 0).sum(1) * w[0]"
    ),
    "where, one argument": Case(
        EACH.format("row[torch.where(row > 0)].sum() * w[0]"),
        MASK,
        "torch.where(x > 0, x, 0.0).sum(1) * w[0]",
    ),
    "x[mask] = 0": Case(
        "v = x.clone()\nv[v > 0] = 0.0\nv @ w", MASK, "v = torch.where(x > 0, 0.0, x)\nv @ w"
    ),
    "unique": Case(
        "m = [torch.unique(v, return_counts=True)[1].sum() * w[0] for v in x > 0]\ntorch.stack(m)",
        COUNT,
        "((x > 0).long().unsqueeze(-1) == torch.arange(2)).sum(-2).sum(1) * w[0]",
    ),
    "a slice by a value": Case(
        "torch.stack([row[:n] @ w[:n] for row, n in zip(x, n)])",
        SIZE,
        "(x * w * (torch.arange(3) < n.unsqueeze(-1))).sum(1)",
    ),
    "range of a value": Case(
        "torch.stack([sum((w[i] for i in range(one)), torch.zeros(())) for one in n])",
        SIZE,
        "(w * (torch.arange(3) < n.unsqueeze(-1))).sum(1)",
    ),
    "arange of a value": Case(
        "torch.stack([w[torch.arange(one)].sum() for one in n])",
        SIZE,
        "(w * (torch.arange(3) < n.unsqueeze(-1))).sum(1)",
    ),
    "packed lengths": Case(
        "p = pack_padded_sequence(x.unsqueeze(-1), n, batch_first=True, enforce_sorted=False)\n"
        "layer(p)[1][0][0, :, 0] * w[0]",
        PACK,
        "last = torch.arange(3) == n.unsqueeze(-1) - 1\n"
        "(layer(x.unsqueeze(-1))[0][..., 0] * last).sum(1) * w[0]",
    ),
    "one_hot": Case(
        "torch.nn.functional.one_hot(k, 3).double() @ w",
        "write torch.eye(n)[k]",
        "torch.eye(3)[k].double() @ w",
    ),
    # something is written in place
    "v[:, 1:] =": Case(
        "v = torch.zeros(len(x), 3)\nv[:, 1:] = x[:, 1:]\nv @ w",
        PLACE,
        "v = torch.cat([torch.zeros(len(x), 1), x[:, 1:]], 1)\nv @ w",
    ),
    "+=": Case(
        "m = torch.zeros(len(x))\nm += x @ w\nm", PLACE, "m = torch.zeros(len(x)) + x @ w\nm"
    ),
    "mul_": Case("torch.ones(len(x)).mul_(x @ w)", PLACE, "torch.ones(len(x)) * (x @ w)"),
    "add_": Case("torch.zeros(len(x)).add_(x @ w)", PLACE, "torch.zeros(len(x)).add(x @ w)"),
    "copy_": Case("torch.zeros(len(x)).copy_(x @ w)", PLACE, "x @ w"),
    "v[:] =": Case("v = torch.zeros(len(x))\nv[:] = x @ w\nv", PLACE, "x @ w"),
    "scatter_": Case(
        "torch.zeros(len(x), 3).scatter_(1, k.unsqueeze(1), 1.0) @ w",
        PLACE,
        "torch.zeros(len(x), 3).scatter(1, k.unsqueeze(1), 1.0) @ w",
    ),
    "scatter_add_": Case(
        "torch.zeros(len(x), 3).scatter_add_(1, k.unsqueeze(1), x) @ w",
        PLACE,
        "torch.zeros(len(x), 3).scatter_add(1, k.unsqueeze(1), x) @ w",
    ),
    "index_put_": Case(
        "torch.zeros(len(x), 3).index_put_((torch.arange(len(x)), k), x[:, 0]) @ w",
        PLACE,
        "torch.zeros(len(x), 3).index_put((torch.arange(len(x)), k), x[:, 0]) @ w",
    ),
    "requires_grad_": Case("x.requires_grad_()\nx @ w", "leave requires_grad_() out", "x @ w"),
}


def model(body: str) -> Callable[..., None]:
    """Return the model whose mean these lines compute."""
    *lines, mean = body.splitlines()
    whole = (
        "w = pyro.sample('w', dist.Normal(torch.zeros(3), 1.0).to_event(1))\n"
        + "".join(f"{line}\n" for line in lines)
        + f"mean = {mean}\n"
        + "with pyro.plate('records', len(y)):\n pyro.sample('y', dist.Normal(mean, 1.0), obs=y)\n"
    )
    text = f"import math\ndef made(x, k, n, y):\n{textwrap.indent(whole, ' ')}"
    name = f"{abs(hash(body))}.py"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    pack = nn.utils.rnn.pack_padded_sequence
    names: dict[str, Any] = {"pyro": pyro, "dist": dist, "torch": torch, "np": np}
    names |= {"special": special, "pack_padded_sequence": pack, "layer": _layer()}
    exec(compile(text, name, "exec"), names)
    made: Callable[..., None] = names["made"]
    return made


def _layer() -> nn.LSTM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.LSTM(1, 1, batch_first=True).double().requires_grad_(False)


TRAINED = {"x[mask] = 0"} if Version(torch.__version__) >= Version("2.14") else set()
"""What newer releases of torch can do for single records."""


@pytest.mark.parametrize("name", CASES)
def test_the_remedy_for_an_operation_is_the_same_program(name: str) -> None:
    case = CASES[name]
    rows = [Row("operation", name, model(text), DATA, AutoNormal) for text in (case.bad, case.good)]
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pyro.clear_param_store()
            guide = rows[0].guide(rows[0].model)
            plain = trained(rows[0], guide, STEPS)
            pyro.clear_param_store()
            if name not in TRAINED:
                with pytest.raises(ValueError, match=re.escape(case.says)) as told:
                    trained_privately(rows[0], guide, plain, STEPS)
                assert re.search(r"line \d+ of \d+\.py `", str(told.value))
                pyro.clear_param_store()
            with without_privacy():
                private = trained_privately(rows[1], guide, plain, STEPS)
    finally:
        torch.set_default_dtype(kept)
        pyro.clear_param_store()
    assert max(float((plain[n] - value).abs().max()) for n, value in private.items()) <= NEAR
