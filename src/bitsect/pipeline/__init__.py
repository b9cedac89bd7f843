"""The story: one file per verb."""
