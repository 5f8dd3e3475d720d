"""A key that is kept for going on after an interruption meets nothing but the same work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flat
import pandas as pd
import pytest

from bdpvi.releases.intent import NAME, begin_work, output_of, read

FRAME = pd.DataFrame({"age": range(20, 30), "sick": ["no", "yes"] * 5})


def asked(**changed: Any) -> dict[str, Any]:
    """Return what a call of ``private`` sets out to do."""
    settings: dict[str, Any] = {
        "table": FRAME,
        "target": "sick",
        "positive": "yes",
        "epsilon": 1.0,
    } | changed
    table, options = flat.work(**settings).digests()
    price = {"epsilon": settings["epsilon"]}
    return {"table": table, "options": options, "charge": price, "ledger": None}


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"epsilon": 1.5}, "options"),
        ({"delta": 1e-6}, "options"),
        ({"positive": "no"}, "options"),
        ({"table": FRAME[:-1]}, "table"),
    ],
)
def test_a_key_meets_no_other_table_price_or_options(
    changed: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """The difference of two outputs with one noise would show what it hides."""
    file = tmp_path / "work" / NAME
    file.parent.mkdir()
    work = begin_work(file, **asked())
    (tmp_path / "other").mkdir()
    assert work.secret != begin_work(tmp_path / "other" / NAME, **asked()).secret
    for state in ("begun", "made"):
        with pytest.raises(ValueError, match=f"was begun with (another|other) {name}"):
            begin_work(file, **asked(**changed))
        again = begin_work(file, **asked())
        if state == "begun":
            assert again == work
            assert work.output(lambda: b"it") == b"it"
    # Once the output is on the disk there is no key any more, and the output is not made again.
    assert work.secret.secret not in file.read_bytes()
    assert work.secret.secret.hex() not in file.read_text()
    assert begin_work(file, **asked()).output(lambda: b"another") == b"it"
    with pytest.raises(ValueError, match="32 bytes"):
        begin_work(file, **asked()).secret  # noqa: B018


def test_a_secret_is_erased_before_anything_is_published_and_not_before_it_is_kept(
    tmp_path: Path,
) -> None:
    file = tmp_path / NAME

    def interrupted() -> bytes:
        raise KeyboardInterrupt

    work = begin_work(file, **asked())
    with pytest.raises(KeyboardInterrupt):
        work.output(interrupted)
    assert begin_work(file, **asked()).secret == work.secret
    output_of(file).write_bytes(b"it")  # and then it was interrupted
    assert begin_work(file, **asked()).output(interrupted) == b"it"
    assert read(file).key == b""


def test_a_folder_of_something_else_is_not_begun_with(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"holds mine\.txt; choose another"):
        begin_work(tmp_path / NAME, **asked())
    assert [one.name for one in tmp_path.iterdir()] == ["mine.txt"]
