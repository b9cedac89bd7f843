"""EXPORTERS: ways out, each proven by running what was written."""
