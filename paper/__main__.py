"""python -m paper NAMES RUN…: the paper's figures and tables for the networks of runs.

    python -m paper all runs/resnet20 runs/mobilenetv2 -o runs/paper
    python -m paper figure4 runs/resnet20 --method paper-literal -o figure4.csv

NAMES are several with commas, or `all`. Without -o the rows of one NAME go to the standard output.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bitsect import BitsectError

from .experiments import EXPERIMENTS, SEARCHES
from .make import make
from .text import csv_text, write_whole


def main(arguments: list[str] | None = None) -> None:
    """Make what the command line asks for; an error of bitsect is one line and exit code 1."""
    parser = argparse.ArgumentParser("python -m paper", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", metavar="NAMES", help=f"{', '.join(EXPERIMENTS)}; several with commas; all")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the folders of runs, a network each")
    parser.add_argument("-o", "--out", help="a folder for everything, or FILE.csv for the rows of one NAME")
    parser.add_argument("--method", default="paper", choices=SEARCHES)
    parser.add_argument("--methods", help="whose rows stand in the tables; default: METHOD,bitsect")
    parser.add_argument("--targets", help="others than the paper's, as 98%%,99%%")
    parser.add_argument("--draws", type=int, help="draws of the samples; default: 5 for error-bars, else 1")
    parser.add_argument("--latency", default="a100", help="latency table: a100 or FILE.json")
    parser.add_argument("--test-data", help="samples that no search sees; default: those of the run")
    parser.add_argument("--pairs", default="exact", choices=("exact", "linear"))
    parser.add_argument("--task", help="the runs' own task again, where that is a function of yours")
    parser.add_argument("--trust", action="store_true", help="load files that run code of their author")
    asked = vars(parser.parse_args(arguments))
    out = asked.pop("out")
    folder = None if out is None or out.endswith(".csv") else out
    if folder is None and ("," in asked["names"] or asked["names"] == "all"):
        parser.error("several figures need a folder: --out DIR")
    try:
        found = make(asked.pop("names"), asked.pop("runs"), out=folder, **asked)
        if folder is not None:
            print(f"Written to {folder}/README.md, with CSV, SVG and PNG beside it", file=sys.stderr)
        elif out is not None:
            write_whole(Path(out), csv_text(found.rows).encode())
        else:
            sys.stdout.write(csv_text(found.rows))
    except BitsectError as error:
        sys.exit(f"error: {error.as_command()}")


if __name__ == "__main__":
    main()
