"""Runtimes that run written models."""
