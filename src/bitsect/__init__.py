"""bitsect: the bit-width each layer of a trained network can bear."""

__version__ = "0.1.0"
