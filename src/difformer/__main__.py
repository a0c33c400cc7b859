"""``python -m difformer`` is the command ``difformer``."""

from difformer.cli import main

if __name__ == "__main__":
    main()
