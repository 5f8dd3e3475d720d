"""What is logged: steps and durations, and nothing that is secret."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

import bdpvi
from bdpvi import Coupled, Dataset, Optimum, guides
from bdpvi.bayesian.neighbours.route import Neighbours

STEPS = ("fit", "neighbours (remove)", "release", "accounting")
SAID = re.compile(rf"({'|'.join(map(re.escape, STEPS))}) (begins|took \d+\.\d s)")


@pytest.mark.parametrize("neighbours", [Coupled, Optimum])
def test_steps_are_logged_and_nothing_else(
    neighbours: Callable[[], Neighbours], data: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    model = bdpvi.BayesianLogisticRegression(clip=0.1, prior_scale=0.1)
    with caplog.at_level(logging.DEBUG, logger="bdpvi"):
        fit = bdpvi.fit(
            model,
            guides.MeanField(model),
            data,
            training=bdpvi.Training(steps=5),
            neighbours=neighbours(),
            progress=False,
        )
        bdpvi.release(fit, epsilon=50, delta=1e-3)
    found = [SAID.fullmatch(message) for message in caplog.messages]
    assert all(found)
    assert {one[1] for one in found if one} == set(STEPS)
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    begun, ended = (sum(one[2].startswith(w) for one in found if one) for w in ("begins", "took"))
    assert begun == ended


def test_a_library_is_silent_by_itself() -> None:
    code = "import logging, bdpvi; logging.getLogger('bdpvi').warning('heard')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
