"""An nn.Module made into a Program that can be run from any layer."""
