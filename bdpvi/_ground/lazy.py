"""Names of a package that are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy(
    package: str, names: Mapping[str, Sequence[str]], packages: Sequence[str] = ()
) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``: nothing heavy is loaded before it is needed.

    Args:
        package: its ``__name__``.
        names: public names, by the module of the package that has them.
        packages: sub-packages that are attributes without an import of their own.

    >>> lazy("collections", {"abc": ["Mapping"]})("Mapping")
    <class 'collections.abc.Mapping'>
    """
    homes = {name: f"{package}.{module}" for module, some in names.items() for name in some}

    def find(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find
