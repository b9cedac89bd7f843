"""Numbers only: metrics, reliability, costs, confidence, searches; from tables to a plan."""
