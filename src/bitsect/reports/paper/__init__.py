"""The paper's tables and figures, drawn from the rows of runs."""
