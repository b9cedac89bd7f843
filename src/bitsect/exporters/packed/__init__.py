"""Packed files: integer codes and scales in safetensors with their plan, and the reader of them."""
