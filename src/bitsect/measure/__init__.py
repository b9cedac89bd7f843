"""What the network is asked: traces, single and pair losses, damage, noise. Every finished piece is kept."""

from .context import Context
from .damage import output_damage
from .noise import fisher_terms, weight_errors
from .pairs import exact_pairs, linear_pairs, single_losses
from .traces import hessian_traces

__all__ = [
    "Context",
    "exact_pairs",
    "fisher_terms",
    "hessian_traces",
    "linear_pairs",
    "output_damage",
    "single_losses",
    "weight_errors",
]
