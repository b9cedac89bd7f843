"""The paper's experiments, tables and figures, made with the public names of bitsect alone."""
