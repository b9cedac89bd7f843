"""A run shown: HTML, terminal, the paper's tables and figures."""
