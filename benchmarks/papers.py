"""Parts of what reproduction.py writes: what of the papers was redone, and their small δ."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bdpvi.privacy.gaussian_dp import gaussian_distance, gaussian_epsilon

FIRST_TABLE = "## Table I "
SMALL = 1e-10
PUBLISHED_SMALL = {"abalone": (0.76, 0.5, 0.61), "adult": (0.81, 0.16, 0.2)}
"""Accuracy and Bayesian ε at 1e-5 and at 1e-10: Table 5.2 of the thesis."""

ABOUT_STATUS = """## What of the papers was redone

*Redone* means computed anew here, whatever came out. *Not at hand* means that we could not read the
part itself, so that nothing is said of its numbers; of what Tables 3.1, 3.3, 4.1 and 4.3 are about
we know what the abstracts of chapters 3 and 4's papers say of their experiments. *Curves* are
what `python benchmarks/paper_curves.py` printed ([output](paper-curves.txt)); a study's command is
`PYTHONPATH=benchmarks python -m studies NAME`.

"""

CURVES = "[curves](paper-curves.txt)"
STATUS = (
    ("**Triastcyn and Faltings, Bayesian DP, ICML 2020**", "", ""),
    ("Table I, Abalone, Adult", "redone", "below, at δ = 1e-5 and 1e-10"),
    ("Table I, MNIST", "redone, by a worst case", "below; [networks](studies/networks.md)"),
    ("Table I, CIFAR-10", "not redone", "no images, no weights; a stand-in below"),
    ("Figures 1, 2: ε against σ, Weibull gradients", "redone",
     "[clipping](studies/weibull-clipping.md)"),
    ("Figure 3: ε over steps", "redone", "[steps](studies/steps.md)"),
    ("Figure 4: ε against λ", "redone", "[orders](studies/orders.md)"),
    ("ε over the epochs, MNIST", "redone at its rate, as a worst case; of a path on digits",
     f"{CURVES}: epochs; accuracies by step: [runs](mnist-runs.txt)"),
    ("ε over the epochs, CIFAR-10", "not redone", "no images, no weights"),
    ("accuracy against ε, Abalone and Adult", "redone", "below, as Figures 9 and 10"),
    ("supplement: histograms of pair distances", "redone on digits",
     "[leakage check](studies/networks.md#the-leakage-check)"),
    ("Figure 5, further ones of the supplement", "not at hand",
     "what they show may be among the rows above"),
    ("**Its first version, Improved Accounting, arXiv 1901.09697v1**", "", ""),
    ("Table 1: 2.18, 1.62, 0.95; 7.6, 4.54, 0.11; 2.90, 2.70, 0.08",
     "redone for Abalone and Adult", "below; its middle numbers are by an accountant that "
     "[guarantees nothing](studies/accountants.md)"),
    ("Figure 2: δ over training steps", "redone; its settings are not at hand",
     f"{CURVES}: steps. The generic accountant claims less than 1e-15 at 3,000 steps, where "
     "PLD has 2e-9"),
    ("Figures 1, 3", "in part", "the accountants [against order, steps and "
     "σ](studies/accountants.md); what each shows is not at hand"),
    ("**Federated Learning with Bayesian DP, 2019; thesis, chapter 6**", "", ""),
    ("Figure 6.1: parallel and sequential accounting", "redone",
     "[schemes](studies/federated.md#growth-with-rounds-and-clients)"),
    ("Figure 6.2, MNIST", "redone as a table", "[one noise](federated.txt)"),
    ("tables, MNIST", "redone", "below"),
    ("figure and tables, APTOS 2019", "not redone", "images behind rules of a competition"),
    ("**Generating Artificial Data for Private Deep Learning (arXiv 1803.03148), 2019; thesis, "
     "chapter 3**", "", ""),
    ("its first version: noise on a critic's activations", "redone as a price, no images",
     f"{CURVES}: activations. A gradient below the noise shows the record itself; what lies "
     "above it costs ε = 65 in 400 passes at noise five times the clip"),
    ("a limit on the number of generated samples", "redone as a price",
     f"{CURVES}: draws, for draws from a posterior. Rows from noisy counts or weights need none"),
    ("Table 3.1: accuracy of students; not at hand", "in kind, on digits",
     f"{CURVES}: students; SVHN and faces come with no package"),
    ("Table 3.2: (μ, γ)", "the statistic on other data",
     "[average-case privacy](studies/generative.md)"),
    ("Table 3.3: model inversion; not at hand", "not redone",
     "faces, a detector and a recogniser are not to be had; [an attack on "
     "membership](studies/generative.md) instead"),
    ("Figures 3.2 to 3.7", "not redone",
     "not at hand; SVHN and CelebA, the paper's data beside MNIST, come with no package"),
    ("**Federated Generative Privacy, 2019; thesis, chapter 4**", "", ""),
    ("Table 4.1: accuracy of students; not at hand", "in kind, on digits",
     f"{CURVES}: students of ten clients' generators"),
    ("Table 4.2: (μ, γ)", "the statistic on other data",
     "[average-case privacy](studies/generative.md), rows at random and by class"),
    ("Table 4.3: model inversion; not at hand", "not redone", "as Table 3.3"),
    ("**Thesis of Triastcyn, EPFL 2020, chapter 5**", "", ""),
    ("Table 5.1: notions", "redone in words",
     "[notions](explanation/notions.md), with those of this library"),
    ("Table 5.2", "redone but for CIFAR-10", "below"),
    ("Figures 5.1 to 5.5", "redone", "[clipping](studies/weibull-clipping.md), "
     "[steps](studies/steps.md), [orders](studies/orders.md), "
     "[composition](studies/composition.md)"),
    ("Figures 5.6, 5.7", "redone on digits",
     "[leakage check](studies/networks.md#the-leakage-check)"),
    ("theorems that are wrong or loose, of all these papers", "corrected, checked by quadrature",
     "[errata](explanation/errata.md)"),
    ("**Generating Higher-Fidelity Synthetic Datasets, 2020; thesis, chapter 7**", "", ""),
    ("MNIST: classifier, students", "redone, by worst cases", "below"),
    ("Fashion-MNIST", "not redone", "images not at hand"),
    ("inspection and validation", "redone with another fault and table", "below"),
    ("Figures 7.2, 7.4, 7.5", "not redone",
     "not at hand; the chapter is about images of a WGAN, whose noise has "
     "[no ε that holds](studies/generative.md)"),
    ("**Figures of the thesis that are not named here**", "not at hand", "—"),
    ("**Jälkö, Dikmen and Honkela, UAI 2017**", "", ""),
    ("logistic regression on Abalone and Adult", "redone", "below, with their settings"),
    ("mixture of Gaussians", "in kind", "a mixture as an [example](examples/mixture.md) of DPVI"),
    ("further figures", "not at hand", "—"),
    ("**Wang, Fienberg and Smola, ICML 2015**", "", ""),
    ("the sampler (DP-SGLD)", "redone as a baseline",
     "[benchmarks](benchmarks.md), as published and by PLD"),
    ("one posterior draw for free", "redone as a guarantee",
     "draws of logistic regression [behind a gate](worst-case-draws.txt)"),
    ("its figures", "not at hand", "—"),
)  # fmt: skip

ABOUT_SMALL = """## Table 5.2 of the thesis, δ = 1e-10: Abalone and Adult

The thesis's column at δ = 1e-10 is its way from a mean over records to single ones. In words: a
Bayesian δ is a mean of the records' own δ, so by Markov's inequality at most a share δ/φ of the
population has an own δ above φ. A mechanism that is (ε, 1e-10)-Bayesian DP is therefore (ε, φ)-DP
for all but a share 1e-10/φ of the population, in each order of the two tables: at φ = 1e-5 for all
but one record in 100,000. Nothing follows for that one.

Ours is one draw from the posterior itself (`guides.Laplace`), with a *certified* ε, on the papers'
rows; accuracy is the mean of 100 draws (`python benchmarks/small_delta.py`,
[output](small-delta.txt)). Its δ includes the probability that the certificate fails.

"""

AFTER_SMALL = """
The published ε hardly grows, from 0.5 to 0.61 and from 0.16 to 0.2; a certified one grows
{factors} times. No sample of some thousand records proves what one in 10¹⁰ may do: the certificate
pays for what it has not seen, up to the range of any conceivable record (its worst case at 1e-10
is {worst}). The published numbers assume instead that the tail of the costs is as tame as
Student's t needs. A larger temperature does not help much: at τ = 30 it is still {hot}.

Where δ has to be that small, a worst case is cheaper than a mean: full-batch gradient descent with
exact Gaussian-DP accounting, the same runs as in Table I above, costs what one Gaussian mechanism
does, so its ε at 1e-10 follows from that at 1e-5. It holds for every record, without a share left
out; the number of records and the settings count as public.
"""


INSPECTION = """## Inspection and validation by synthetic rows: chapter 7 of the thesis

The thesis looks for faults in private data, and ranks models, by generated images. Here the table
is MNIST's training images, averaged to 16 pixels, and their digits; a share of the fours is
labelled nine, and `bdpvi.synthesize` makes 60,000 synthetic rows at a worst-case ε, δ = 1e-5. The
inspector sees these rows and 5,000 clean images of their own, from which a network says what a row
shows. A contradiction is a label and another digit that is shown; its excess is its share of the
label's rows, less that on clean images. Mean of the largest, and which it is, in five tables each:

    python benchmarks/inspection.py --data FOLDER

{faults}
So the fault is found at ε = 1 if it is large, at ε = 10 if it is small, and never at 0.1, where the
rows' own errors are larger. The inspector has no table without the fault to compare with: at
ε = 10 such a table names the same pair in part of the tables, at an excess of 0.066.

Classifiers trained on clean images, by their accuracy on synthetic rows and on real ones, with
Kendall's rank correlation:

{ranks}
The order is right in the large: at ε = 1 and 10 who chooses by synthetic rows takes the network and
loses 0.08 to the neighbours, which the rows score too low. An accuracy on synthetic rows is no
estimate of the real one: at ε = 10 it is up to 0.22 smaller. ([Output](inspection.txt);
43 CPU seconds.)
"""


def markdown(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """Return a table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def status() -> str:
    """Return the part that lists every table and figure."""
    return ABOUT_STATUS + markdown(("what", "status", "where, or why not"), list(STATUS))


class Measured(NamedTuple):
    """A line of ``small_delta.py``, as printed."""

    data: str
    temperature: str
    usual: str
    small: str
    worst: str
    accuracy: str


def measured(output: Path) -> dict[tuple[str, str], Measured]:
    """Return what ``small_delta.py`` printed, by data and temperature."""
    lines = output.read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    found = [Measured(*(cell.strip() for cell in line.strip("|").split("|"))) for line in table]
    return {(one.data, one.temperature): one for one in found}


def descent(page: str) -> dict[str, tuple[float, float]]:
    """Return ε and accuracy of DP-GD by the data's name, as Table I on the page has them."""
    result, start = {}, page.index(FIRST_TABLE)
    lines = page[start : page.index("\n## ", start)].splitlines()
    for data in PUBLISHED_SMALL:
        (row,) = (line for line in lines if line.startswith(f"| {data} | 0."))
        epsilon, accuracy = row.strip("| ").split("|")[-1].strip().rstrip(")").split(" (")
        result[data] = float(epsilon), float(accuracy)
    return result


def at_small_delta(epsilon: float, delta: float = 1e-5) -> float:
    """Return the ε at 1e-10 of the Gaussian mechanism that has this ε at δ.

    >>> round(at_small_delta(0.1), 3)
    0.18
    """
    return gaussian_epsilon(gaussian_distance(epsilon, delta) ** 2, SMALL)


def small_delta(output: Path, page: str) -> str:
    """Return the part on δ = 1e-10, from the output of ``small_delta.py`` and Table I."""
    found, known = measured(output), descent(page)
    rows: list[tuple[object, ...]] = []
    for data, (accuracy, usual, small) in PUBLISHED_SMALL.items():
        ours = found[data, "1"]
        epsilon, reached = known[data]
        rows.append(
            (
                data, accuracy, usual, small, ours.accuracy, ours.usual, ours.small,
                f"{reached:.4f}", f"{epsilon:.3g}", f"{at_small_delta(epsilon):.3g}",
            )
        )  # fmt: skip
    names = (
        "data", "published: accuracy", "Bayesian ε at 1e-5", "at 1e-10", "certified draw: accuracy",
        "Bayesian ε at 1e-5", "at 1e-10", "DP-GD: accuracy", "worst-case ε at 1e-5", "at 1e-10",
    )  # fmt: skip
    cold = [found[data, "1"] for data in PUBLISHED_SMALL]
    after = AFTER_SMALL.format(
        factors=" and ".join(f"{float(one.small) / float(one.usual):.0f}" for one in cold),
        worst=" and ".join(one.worst for one in cold),
        hot=" and ".join(found[data, "30"].small for data in PUBLISHED_SMALL),
    )
    return ABOUT_SMALL + markdown(names, rows) + after


def inspection(output: Path) -> str:
    """Return the part on synthetic rows as a look into private data."""
    faults, ranks = output.read_text(encoding="utf-8").split("\n\n")
    return INSPECTION.format(faults=faults[faults.index("|") :] + "\n", ranks=ranks)


def with_part(page: str, part: str, before: str) -> str:
    """Return a page with a part written anew, or put before a heading if it is not there yet."""
    heading = part.splitlines()[0] + "\n"
    start = end = page.index(before)
    if heading in page:
        start = page.index(heading)
        end = page.index("\n## ", start) + 1
    return page[:start] + part + "\n" + page[end:]


def with_papers(page: str, outputs: Path) -> str:
    """Return a page with these parts written anew, from the printed numbers in a folder."""
    page = with_part(page, status(), FIRST_TABLE)
    small = small_delta(outputs / "small-delta.txt", page)
    page = with_part(page, small, "## Networks")
    return with_part(page, inspection(outputs / "inspection.txt"), "## Figures 9 and 10")
