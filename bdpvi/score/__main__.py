"""``python -m bdpvi.score RELEASE TABLE [DIALECT]``: print the SELECT of a release."""

import sys

from .scorer import load

if __name__ == "__main__":
    try:
        file, table, *dialect = sys.argv[1:]
        print(load(file).to_sql(table, dialect=(*dialect, "standard")[0]))  # noqa: T201
    except (ValueError, OSError) as error:
        sys.exit(f"bdpvi.score: {error}\n{__doc__}")
