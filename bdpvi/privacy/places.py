"""The paths that a work reads and writes: each is resolved once and checked against the others."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdpvi._ground import store


@dataclass(frozen=True, kw_only=True)
class Places:
    """Resolved paths.

    Attributes:
        out: file or folder that may be shared.
        secret: folder that may not be shared.
        ledger: file of the table's ledger; None if there is none yet.
    """

    out: Path
    secret: Path
    ledger: Path | None

    @classmethod
    def of(
        cls,
        *,
        out: Path,
        secret: Path,
        ledger: Path | None = None,
        shared: Path | None = None,
        output: Path | None = None,
    ) -> Places:
        """Resolve the paths.

        Args:
            out, secret, ledger: as given.
            shared: the shared folder; by default that of ``out``.
            output: where this work stores its finished output. If it exists, ``out`` may exist too,
                and the caller compares them.

        Raises:
            ValueError: if one is a broken link, ``out`` exists but is not this work's, something
                secret would lie in the shared folder, or others can read the secret folder.

        >>> Places.of(out=Path("out/a.json"), secret=Path("out/secret"))
        Traceback (most recent call last):
            ...
        ValueError: secret='out/secret' lies in 'out', which is shared; choose another place
        """
        given = {"out": out, "secret": secret, "ledger": ledger}
        found: dict[str, Any] = {
            name: path and resolve_link(name, path) for name, path in given.items()
        }
        for folder in (found["out"].parent, found["secret"]):
            if folder.is_dir():
                store.remove_dead(folder)
        made = output is not None and output.exists()
        if not (made or store.nothing_at(found["out"])):
            raise ValueError(
                f"out={str(out)!r} exists already; choose another; nothing is overwritten"
            )
        public = resolve_link("out", out.parent if shared is None else shared)
        for name in ("secret", "ledger"):
            path = found[name]
            if path is not None and path.is_relative_to(public):
                raise ValueError(
                    f"{name}={str(given[name])!r} lies in {str(shared or out.parent)!r}, which is "
                    "shared; choose another place"
                )
        where = cls(**found)
        if os.name == "posix" and where.secret.is_dir():
            mode = stat.S_IMODE(where.secret.stat().st_mode)
            if mode & 0o077:
                raise ValueError(
                    f"secret={str(secret)!r} has mode {mode:04o}, so others can read it: chmod 700 "
                    "it, or choose another folder"
                )
        return where


def resolve_link(name: str, path: Path) -> Path:
    """Return a resolved path.

    Raises:
        ValueError: if it is a broken or circular link.
    """
    for one in (path, *path.parents):
        if one.is_symlink() and not one.exists():
            raise ValueError(f"{name}={str(path)!r} is a link that leads nowhere")
    return path.resolve()
