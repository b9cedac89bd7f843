"""Where values are rounded, and in whose arithmetic."""
