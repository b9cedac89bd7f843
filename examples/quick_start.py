"""The bit-width that each layer of a trained network can bear, in six lines.

python examples/quick_start.py
"""

import bitsect

result = bitsect.quantize("zoo:fashion-resnet", target=0.99, draw=256, destination="bits")

print(result.plan["conv1"], result.plan["fc"])
print(f"{result.float_accuracy:.2%} → {result.accuracy:.2%} with {result.size_ratio:.0%} of the size")
