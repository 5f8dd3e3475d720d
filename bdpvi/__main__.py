"""``python -m bdpvi``."""

from bdpvi.cli import main

if __name__ == "__main__":
    main()
