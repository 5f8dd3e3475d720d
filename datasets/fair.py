"""Fair's survey of marriages: did she have an affair?"""

from __future__ import annotations

from bdpvi.datasets.dataset import Split
from bdpvi.datasets.public import public_table
from bdpvi.datasets.split import shuffled


def load_fair() -> Split:
    """Load 6,366 married women with 8 answers each; y = 1 is an affair. Needs no file.

    Occupations are codes of published classes, treated as numbers as in the survey's analyses. All
    columns are standardised over all rows. The table lists all affairs first, so the rows are
    permuted with a fixed seed before the first 80 % are used for training.

    Raises:
        ImportError: without the extra ``bdpvi[report]``.

    Source: R. Fair, "A Theory of Extramarital Affairs", Journal of Political Economy 86(1), 1978;
    the copy inside statsmodels.

    >>> split = load_fair()  # doctest: +SKIP
    >>> tuple(split.train.x.shape), len(split.test)  # doctest: +SKIP
    ((5092, 8), 1274)
    """
    try:
        from statsmodels.datasets import fair
    except ImportError as error:
        raise ImportError("statsmodels is not installed: pip install 'bdpvi[report]'") from error
    frame = fair.load_pandas().data
    affair = frame.pop("affairs") > 0
    return shuffled(public_table("fair", frame, affair, "had an affair"))
