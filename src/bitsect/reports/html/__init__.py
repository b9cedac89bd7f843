"""A story as one HTML page."""
