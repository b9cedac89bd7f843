"""The three architectures of the zoo: the idioms of the large networks, at a size that any machine runs."""

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 10


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, with the in-place operations of torchvision's ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        activated: torch.Tensor = self.relu(out)
        return activated


class FashionResNet(nn.Module):
    """Nine residual blocks behind a strided stem."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 48), depth: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, widths[0], 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for index in range(depth):
                blocks.append(ResidualBlock(inputs, width, stride=2 if stage and not index else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.blocks(x)
        x = F.adaptive_avg_pool2d(x, 1)
        logits: torch.Tensor = self.fc(torch.flatten(x, 1))
        return logits


class InvertedResidual(nn.Module):
    """Expand, filter each channel alone, project; the projection has no activation."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, expansion: int = 4) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = nn.Conv2d(inputs, hidden, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.depthwise = nn.Conv2d(hidden, hidden, 3, stride, padding=1, groups=hidden, bias=False)
        self.bn2 = nn.BatchNorm2d(hidden)
        self.project = nn.Conv2d(hidden, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.act = nn.ReLU6(inplace=True)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.bn1(self.expand(x)))
        hidden = self.act(self.bn2(self.depthwise(hidden)))
        out: torch.Tensor = self.bn3(self.project(hidden))
        return x + out if self.residual else out


class FashionMobileNet(nn.Module):
    """Eight inverted residuals between a strided stem and a pointwise head."""

    # (width, blocks, stride of the first)
    STAGES = ((16, 2, 1), (24, 3, 2), (40, 3, 2))

    def __init__(self, head: int = 160) -> None:
        super().__init__()
        inputs = self.STAGES[0][0]
        self.stem = nn.Conv2d(1, inputs, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inputs)
        blocks: list[nn.Module] = []
        for width, depth, stride in self.STAGES:
            for index in range(depth):
                blocks.append(InvertedResidual(inputs, width, stride if index == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Conv2d(inputs, head, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(head)
        self.act = nn.ReLU6(inplace=True)
        self.classifier = nn.Linear(head, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.bn1(self.stem(x)))
        x = self.blocks(x)
        x = self.act(self.bn2(self.head(x)))
        logits: torch.Tensor = self.classifier(x.mean([2, 3]))
        return logits


class Attention(nn.Module):
    """Multi-head self-attention with one matrix for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: torch.Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class TransformerBlock(nn.Module):
    """Attention and a two-layer perceptron, each behind its own normalisation."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        out: torch.Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return out


class FashionTransformer(nn.Module):
    """Five blocks over 7×7 overlapping patches, averaged into one token."""

    def __init__(self, width: int = 48, heads: int = 3, hidden: int = 96, depth: int = 5) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, stride=4, padding=3)
        self.position = nn.Parameter(torch.randn(1, 49, width) * 0.02)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        x = self.norm(self.blocks(x))
        logits: torch.Tensor = self.head(x.mean(1))
        return logits
