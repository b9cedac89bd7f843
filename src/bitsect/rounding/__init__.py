"""What formats do to a program: codes, ranges, placements."""
