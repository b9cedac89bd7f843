import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first on the path of `python -m`, and other people's files may lie there:
    # before anything else is imported it goes, unless bitsect itself is in it.
    here = os.getcwd()  # noqa: PTH109
    if not sys.flags.safe_path and sys.path[0] == here and not __file__.startswith(here):
        del sys.path[0]

    from .cli import main

    main()
