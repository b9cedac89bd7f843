"""The folder: journals, what a run is of, progress."""
