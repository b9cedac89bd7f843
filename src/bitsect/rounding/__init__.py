"""What formats do to a program: codes, ranges, placements.

The tables say where their entries are, so that reading the names loads no torch.
"""

ROUNDINGS = {
    "squant": "bitsect.rounding.squant:squant",
    "nearest": "bitsect.rounding.squant:nearest",
    # What GPTQ was not fitted to, 8-bit weights among them, rounds as SQuant has it.
    "gptq": "bitsect.rounding.squant:squant",
}

RANGES = {
    "percentile": "bitsect.rounding.ranges:Percentile",
    "mse": "bitsect.rounding.ranges:LeastError",
    "max": "bitsect.rounding.ranges:Maximum",
}
