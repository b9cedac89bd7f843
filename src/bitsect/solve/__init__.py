"""Numbers only: metrics, reliability, costs, searches; from tables to a plan."""
