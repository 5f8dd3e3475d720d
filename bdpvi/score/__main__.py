"""``python -m bdpvi.score RELEASE TABLE [ID …]``: print the SELECT of a release's predictions.

``ID`` are columns of the table that the result begins with.
"""

import sys

from .scorer import load

if __name__ == "__main__":
    try:
        file, table, *ids = sys.argv[1:]
        print(load(file).to_sql(table, ids=ids))  # noqa: T201
    except (ValueError, OSError) as error:
        sys.exit(f"bdpvi.score: {error}\n{__doc__}")
