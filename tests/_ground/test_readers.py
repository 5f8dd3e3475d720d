"""Files that were damaged or made up: refused by name, or read as what they say; nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from damage import DEEP, damaged, rewritten
from test_checkpoint import problem

from bdpvi import Coupled, Dataset
from bdpvi._ground import checkpoint, store
from bdpvi._ground.progress import silent


def check_file(
    file: Path,
    read: Callable[[], object],
    change: Callable[[bytes, random.Random], bytes],
    times: int,
    *,
    every: bool,
) -> None:
    """Read a file in many damaged forms; only ValueError that names it is taken for a refusal.

    Args:
        file: put back at the end.
        read: reads it.
        change: damages it.
        times: so often.
        every: whether each change must be refused, since a digest tells.
    """
    whole, chance, refused = file.read_bytes(), random.Random(f"{file.name} {change.__name__}"), 0
    for _ in range(times):
        content = change(whole, chance)
        file.write_bytes(content)
        try:
            read()
        except ValueError as error:
            assert str(file) in str(error) or str(file.parent) in str(error)  # noqa: PT017
            refused += 1
        else:
            assert not every or content == whole
    file.write_bytes(whole)
    read()
    assert refused > times / 3


@pytest.fixture
def parts(data: Dataset, tmp_path: Path) -> tuple[Path, Callable[[], object]]:
    """Return the folder of a checkpoint, and what goes on from it."""
    p, route = problem(data), Coupled(chunk=30, checkpoint=tmp_path / "kept")
    route.train(p, silent)
    return tmp_path / "kept", lambda: route.train(p, silent)


@pytest.mark.parametrize(
    "name", ["fit.safetensors", "remove-000000000.safetensors", "remove-000000030.safetensors"]
)
def test_parts_of_a_checkpoint(name: str, parts: tuple[Path, Callable[[], object]]) -> None:
    folder, go_on = parts
    check_file(folder / name, go_on, damaged, 60, every=True)


def test_settings_of_a_checkpoint(parts: tuple[Path, Callable[[], object]]) -> None:
    folder, go_on = parts
    check_file(folder / "settings.json", go_on, rewritten, 60, every=True)
    check_file(folder / "settings.json", go_on, damaged, 60, every=False)
    for content in (DEEP.encode(), b"[]", b"7", b"\xff", b""):
        (folder / "settings.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"settings\.json"):
            go_on()


def test_state_of_a_fit_that_was_begun(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, p = tmp_path / "kept", problem(data)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_EVERY", 0.0)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        Coupled(checkpoint=kept).train(p, silent)
    (file,) = kept.glob("[!.]*begun*")
    for other in kept.glob("*.safetensors"):
        if other != file:
            other.unlink()
    monkeypatch.setattr("bdpvi.bayesian.neighbours.coupled._compare_rows", interrupted)

    def go_on() -> None:
        with suppress(KeyboardInterrupt):
            Coupled(checkpoint=kept).train(p, silent)
        (kept / "fit.safetensors").unlink()

    check_file(file, go_on, damaged, 60, every=True)


def test_json_that_python_cannot_nest_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text(DEEP, encoding="utf-8")
    with pytest.raises(ValueError, match=r"deep\.json cannot be read"):
        store.read_json(file)
