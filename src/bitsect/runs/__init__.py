"""The run folder: what a run is of, journals, progress."""
