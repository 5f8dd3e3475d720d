"""``bdpvi`` and ``python -m bdpvi``: the command line."""

import sys


def main() -> None:
    """Run the command line; an interruption while modules load prints one line too."""
    try:
        from bdpvi.cli import main as run
    except KeyboardInterrupt:
        print("bdpvi: interrupted: nothing was begun", file=sys.stderr)
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
