"""Saved fits: whole, private, and never believed if they were changed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load, save
from simulated import logistic_data

import bdpvi
from bdpvi._ground import chain, store
from bdpvi._ground.chain import Head
from bdpvi.bayesian import releases
from bdpvi.bayesian.drawing import Asked
from bdpvi.bayesian.fit import Kept
from bdpvi.bayesian.storage import load_fit, open_ledger, read_extra, save_fit
from bdpvi.datasets.dataset import People
from bdpvi.guides import FullRank, MeanField
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.privacy.entry import Charge, Entry
from bdpvi.privacy.ledger import Ledger

pytestmark = pytest.mark.usefixtures("quick")
MODEL = bdpvi.BayesianLogisticRegression(clip=0.3)
FILES = {"fit.json", "fit.safetensors", "ledger.jsonl", "ledger.jsonl.head"}


@pytest.fixture(scope="module")
def trained() -> bdpvi.Fit:
    return bdpvi.fit(
        MODEL,
        FullRank(MODEL),
        logistic_data(40, 2),
        training=bdpvi.Training(steps=5, rate=0.5, seed=Key(bytes(32))),
        progress=False,
    )


@pytest.fixture
def fit(trained: bdpvi.Fit) -> bdpvi.Fit:
    """Return the fit with a ledger of its own."""
    return replace(trained, kept=Kept(People(Ledger(budget=bdpvi.Budget(9.0, 1e-6)))))


def charge(fit: bdpvi.Fit, draws: Charge) -> None:
    fit.ledger.charge(Entry(kind="draws", of=fit.kept.name, charge=draws, events=None))


@pytest.fixture(scope="module")
def saved(trained: bdpvi.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fit that was saved and released from, once for all tests."""
    path = tmp_path_factory.mktemp("saved") / "fit"
    fit = replace(trained, kept=Kept(People(Ledger(budget=bdpvi.Budget(9.0, 1e-6)))))
    save_fit(fit, path, extra={"guide": "full-rank", "many": [1, None]})
    bdpvi.release(fit, 2, temperature=3.0)
    return path.rename(path.with_name("moved"))  # a copy has the ledger of a folder that is there


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    return Path(shutil.copytree(saved, tmp_path / "fit"))


def loaded(folder: Path) -> bdpvi.Fit:
    return load_fit(folder, MODEL, FullRank(MODEL))


def test_budget_and_charges_come_back(fit: bdpvi.Fit, tmp_path: Path) -> None:
    charge(fit, Charge(1, 9.0))
    save_fit(fit, tmp_path / "fit")
    charge(fit, Charge(2, 3.0))
    back = loaded(tmp_path / "fit")
    assert back.ledger.charges() == (Charge(1, 9.0), Charge(2, 3.0))
    assert back.ledger.budget == fit.ledger.budget == bdpvi.Budget(9.0, 1e-6)
    assert back.plan == fit.plan
    for panel, saved in zip(fit.panels, back.panels, strict=True):
        assert torch.equal(panel.pairs.b2, saved.pairs.b2)
        assert torch.equal(panel.ids, saved.ids)


def test_a_full_disk_after_the_charge_does_not_lose_the_sample(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.write

    def full(path: Path, content: bytes) -> None:
        if path.name.startswith("release-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    fit = loaded(folder)
    monkeypatch.setattr(store, "write", full)
    with pytest.warns(UserWarning, match=r"charged and valid.*release-2\.json.*No space left"):
        released = bdpvi.release(fit)
    assert released.samples.shape == (1, 2)
    assert released.cost.exposure is not None
    assert [one.draws for one in open_ledger(folder).charges()] == [2, 1]
    assert not (folder / "release-2.json").exists()


def test_where_the_head_finds_no_room_the_charge_stands_and_nothing_is_drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.write
    fit, secret = loaded(folder), Key(bytes(32))
    asked = Asked(work=releases.work_of(fit, secret, "facts"))
    drawn = Mock(side_effect=secure.sample)
    # What draws cost each record is on the disk before they are charged, and the head after that.
    for without_room, charged in ((fit.kept.name, [2]), ("ledger.jsonl.head", [2, 1])):

        def full(path: Path, content: bytes, name: str = without_room) -> None:
            if path.name == name:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(store, "write", full)
            patch.setattr(secure, "sample", drawn)
            with pytest.raises(OSError, match="No space left"):
                releases.perform_release(fit, asked)
        assert not drawn.called
        assert [one.draws for one in open_ledger(folder).charges()] == charged
    # The same work goes on, pays nothing, and the head says it.
    assert releases.perform_release(fit, asked).samples.shape == (1, 2)
    assert [one.draws for one in open_ledger(folder).charges()] == [2, 1]
    bdpvi.release(fit)
    assert Head.read(folder / "ledger.jsonl.head") == Head.of(fit.ledger.book().file)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_the_owner_can_read_under_any_umask(
    fit: bdpvi.Fit, tmp_path: Path, umask: int
) -> None:
    old = os.umask(umask)
    try:
        save_fit(fit, tmp_path / "new" / "fit")
        charge(fit, Charge(1, 1.0))
    finally:
        os.umask(old)
    for path in (tmp_path / "new", tmp_path / "new" / "fit"):
        assert path.stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "new" / "fit").iterdir())
    assert {file.name for file in files} >= FILES
    for file in files:
        assert file.stat().st_mode & 0o177 == 0, file


def test_all_is_on_the_disk_before_the_folder_has_its_name(
    fit: bdpvi.Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = store.sync

    def noted(path: Path) -> None:
        synced.append(path.name if path.is_file() else "parent" if path == tmp_path else "folder")
        assert (tmp_path / "fit").exists() == (synced[-1] == "parent")
        sync(path)

    monkeypatch.setattr(store, "sync", noted)
    save_fit(fit, tmp_path / "fit")
    for name in FILES:  # by the name that each has while it is written
        own = [one for one in synced if name in one and (".head" in one) == (".head" in name)]
        assert len(own) == (2 if ".head" in name else 1)  # a head says nothing first
    assert synced[-2:] == ["folder", "parent"]


@pytest.mark.parametrize("when", ["before", "while it is written"])
def test_an_existing_folder_is_never_replaced(
    fit: bdpvi.Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    path, write = tmp_path / "fit", store.write

    def put() -> None:
        path.mkdir(exist_ok=True)
        (path / "mine").write_text("kept")

    def slow(file: Path, content: bytes) -> None:
        put()
        write(file, content)

    if when == "before":
        put()
    monkeypatch.setattr(store, "write", slow)
    with pytest.raises(ValueError, match="exists already"):
        save_fit(fit, path)
    assert list(tmp_path.iterdir()) == [path]
    assert [one.read_text() for one in path.iterdir()] == ["kept"]
    assert fit.ledger.path is None


def test_of_many_that_save_to_one_path_one_does(trained: bdpvi.Fit, tmp_path: Path) -> None:
    fits = [replace(trained, kept=Kept(People())) for _ in range(6)]
    together = threading.Barrier(len(fits))

    def attempt(fit: bdpvi.Fit) -> bool:
        together.wait()
        try:
            save_fit(fit, tmp_path / "fit")
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(len(fits)) as pool:
        assert sum(pool.map(attempt, fits)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["fit"]
    assert sum(fit.ledger.path is not None for fit in fits) == 1
    loaded(tmp_path / "fit")


def test_what_could_not_be_read_back_is_not_written(fit: bdpvi.Fit, tmp_path: Path) -> None:
    for extra in ({"a": object()}, {"a": float("nan")}):
        with pytest.raises(ValueError, match="fit or extra cannot be saved"):
            save_fit(fit, tmp_path / "fit", extra=extra)
    with pytest.raises(ValueError, match=r"cannot be saved: feature_names\[0\] must be str"):
        save_fit(replace(fit, feature_names=(0, 1)), tmp_path / "fit")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_missing_or_cut_file_is_named(folder: Path, name: str) -> None:
    file = folder / name
    whole = file.read_bytes()
    if name == "ledger.jsonl":
        whole = whole[:-1]  # without its newline the last line counts: it is proven
        file.write_bytes(whole)
        assert len(loaded(folder).ledger.charges()) == 1
    for content in (None, b"", whole[:-1], whole[: len(whole) // 2]):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ValueError, match=name):
            loaded(folder)
    file.write_bytes(whole)
    loaded(folder)
    with pytest.raises(ValueError, match=r"nowhere.fit\.json cannot be read"):
        loaded(folder.parent / "nowhere")
    assert not (folder.parent / "nowhere").exists()


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_flipped_bit_in_any_file_is_an_error_that_names_it(folder: Path, name: str) -> None:
    file = folder / name
    whole, rng = file.read_bytes(), random.Random(0)
    for _ in range(40):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(ValueError, match=name.removesuffix(".head")):
            loaded(folder)


@pytest.mark.parametrize("name", sorted(FILES))
def test_files_of_two_fits_cannot_be_exchanged(folder: Path, tmp_path: Path, name: str) -> None:
    data = logistic_data(40, 2, seed=1)
    other = bdpvi.fit(
        MODEL, FullRank(MODEL), data, training=bdpvi.Training(steps=5, rate=0.5), progress=False
    )
    save_fit(other, tmp_path / "other")
    whole = (folder / name).read_bytes()
    shutil.copy(tmp_path / "other" / name, folder / name)
    with pytest.raises(ValueError, match=r"changed|ledger\.jsonl has lost lines"):
        loaded(folder)
    (folder / name).write_bytes(whole)
    for part in ("ledger.jsonl", "ledger.jsonl.head"):
        shutil.copy(tmp_path / "other" / part, folder / part)
    with pytest.raises(ValueError, match="changed"):
        loaded(folder)


def rewritten(folder: Path, about: bytes, numbers: bytes) -> None:
    """Write a folder whose digests all fit, as an attacker or a bug could."""
    (folder / "fit.safetensors").write_bytes(numbers)
    (folder / "fit.json").write_bytes(about)
    ledger = Ledger()
    ledger.bind(hashlib.sha256(about).hexdigest())
    chain.save(folder / "ledger.jsonl", ledger.content())


def changed_json(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    about = json.loads((folder / "fit.json").read_bytes())
    change(about)
    rewritten(folder, json.dumps(about).encode(), (folder / "fit.safetensors").read_bytes())


def changed_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load((folder / "fit.safetensors").read_bytes())
    change(tensors)
    with_bytes(folder, save({name: value.contiguous() for name, value in tensors.items()}))


def with_bytes(folder: Path, numbers: bytes) -> None:
    about = json.loads((folder / "fit.json").read_bytes())
    about["sha256"] = hashlib.sha256(numbers).hexdigest()
    rewritten(folder, json.dumps(about).encode(), numbers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(format=1), "format must be 7, got 1: another version"),
        (lambda a: a["guide"].update(plan=[1]), "guide.plan must be a JSON object"),
        (lambda a: a["guide"]["plan"].update(steps="5"), "steps must be int, got '5'"),
        (lambda a: a["guide"]["plan"].update(rate=float("nan")), "NaN is not JSON"),
        (lambda a: a.update(feature_names=["a"]), "parameters.loc must be"),
        (lambda a: a["guide"].update(ridge=-1), "ridge must be .* got -1"),
        (
            lambda a: a["guide"].update(noise_scale=0.5),
            "made with noise_scale=0.5, and not noise_scale=None",
        ),
        (lambda a: a["guide"].update(largest={}), "largest must be of remove or add"),
        (lambda a: a["guide"].update(largest={"remove": -1.0}), "largest.remove must be .* -1.0"),
        (lambda a: a["guide"].update(largest={"add": None}), "panels need"),
        (lambda a: a.update(sha256="0"), "fit.safetensors was changed"),
    ],
)
@pytest.mark.whole
def test_what_fit_json_must_say(folder: Path, change: Any, message: str) -> None:
    changed_json(folder, change)
    with pytest.raises(ValueError, match=message):
        loaded(folder)


def test_fit_json_must_be_an_object(folder: Path) -> None:
    numbers = (folder / "fit.safetensors").read_bytes()
    for about in (b"[]", b"", b"\xff", b"null", b"[" * 100_000, b'{"format": 2}'):
        rewritten(folder, about, numbers)
        for read in (loaded, read_extra):
            with pytest.raises(ValueError, match=r"fit\.json cannot be used"):
                read(folder)


PANEL = "panels.remove."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("parameters.loc"), r"need .*'parameters\.loc'\] differ"),
        (lambda t: t.update({"parameters.loc": torch.zeros(3).double()}), "loc must be .* got"),
        (lambda t: t.update({"parameters.scale_tril": torch.eye(2)}), "scale_tril must be .*64"),
        (lambda t: t["parameters.loc"].fill_(float("nan")), "parameters.loc has a value"),
        (lambda t: t["parameters.scale_tril"].neg_(), "parameters.scale_tril is not"),
        (lambda t: t.update({PANEL + "ids": t[PANEL + "ids"].double()}), "ids must be int64"),
        (lambda t: t[PANEL + "ids"].fill_(1), "ids must be unique"),
        (lambda t: t.update({PANEL + "r": t[PANEL + "r"][:, 0]}), "r must be float64"),
        (lambda t: t.update({PANEL + "b2": t[PANEL + "b2"][:-1]}), "b2 has shape"),
        (lambda t: t[PANEL + "r"].neg_(), "r must be positive"),
        (lambda t: t[PANEL + "b2"].fill_(float("inf")), "b2 has a value that is not finite"),
        (lambda t: t.update(elbo=t["elbo"][:-1]), "elbo and gradient_norm must be"),
    ],
)
@pytest.mark.whole
def test_what_the_tensors_must_be(folder: Path, change: Any, message: str) -> None:
    changed_tensors(folder, change)
    with pytest.raises(ValueError, match=message) as caught:
        loaded(folder)
    assert "fit.safetensors" in str(caught.value)


def test_another_model_or_guide_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="MeanField and its panels need"):
        load_fit(folder, MODEL, MeanField(MODEL))
    for other in (
        bdpvi.BayesianLogisticRegression.unweighted(intercept=True),
        bdpvi.BayesianLogisticRegression.unweighted(correlation=0.5, groups=((0, 7),)),
    ):
        with pytest.raises(ValueError, match=r"fit\.safetensors cannot be used"):
            load_fit(folder, other, FullRank(other))


def test_a_model_that_does_not_take_the_features_is_refused(folder: Path) -> None:
    def wider(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        raise RuntimeError("size mismatch")

    with pytest.raises(ValueError, match="model does not take 2 features: size mismatch"):
        load_fit(folder, wider, FullRank(wider))


VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 10**400, 1e308, "", "x", "1", [], [[]], [None], {}, {"a": {}}, 0.5, "\ud800",
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in a JSON value with each of its keys."""
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@pytest.mark.whole
def test_random_folders_end_in_value_errors(folder: Path) -> None:
    rng = random.Random(0)
    whole = {name: (folder / name).read_bytes() for name in FILES}
    refused: list[str] = []
    for case in range(150):
        for name, content in whole.items():
            (folder / name).write_bytes(content)
        about, numbers = json.loads(whole["fit.json"]), bytearray(whole["fit.safetensors"])
        if case % 3 == 0:
            for _ in range(rng.randint(1, 3)):
                inside, key = rng.choice(list(places(about)))
                if rng.random() < 0.4:
                    del inside[key]
                else:
                    inside[key] = rng.choice(VALUES)
            rewritten(folder, json.dumps(about).encode(), bytes(numbers))
        else:
            length = len(numbers)
            header = 8 + int.from_bytes(numbers[:8], "little")
            for _ in range(rng.randint(1, 4)):
                place = rng.randrange(header if rng.random() < 0.7 else length)
                numbers[place : place + rng.choice([1, 1, 1, 0, 9])] = rng.randbytes(1)
            if case % 3 == 1:
                with_bytes(folder, bytes(numbers[: rng.choice([None, rng.randrange(length)])]))
            else:
                text = bytearray(whole["fit.json"])
                for _ in range(rng.randint(1, 4)):
                    place = rng.randrange(len(text))
                    text[place : place + rng.choice([0, 1, 9])] = rng.randbytes(1)
                rewritten(folder, bytes(text), whole["fit.safetensors"])
        for read in (loaded, read_extra):
            try:
                read(folder)
            except ValueError as error:
                refused.append(str(error))
    assert len(refused) > 150
    assert all(str(folder) in message for message in refused)
