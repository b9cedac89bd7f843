"""A network of your own with a DataLoader: quantised, used as a module, written to ONNX.

python examples/own_model.py [FILE.onnx]
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitsect

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * 6 * 6, 10),
)  # fmt: skip
images = torch.randn(256, 1, 28, 28)
labels = model(images).argmax(1)  # stands for real labels: this network gets every sample right
loader = DataLoader(TensorDataset(images, labels), batch_size=32)

result = bitsect.quantize(model, loader, target=0.95, metric="single")
quantised = result.model()  # an nn.Module: same inputs, same outputs, rounded
same = (quantised(images).argmax(1) == labels).float().mean()
print(f"The quantised module answers {same:.1%} of the samples like the float one.")

if len(sys.argv) > 1:
    delivery = result.export(sys.argv[1], force=True)
    print(delivery.proof)
