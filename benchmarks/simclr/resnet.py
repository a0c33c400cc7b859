"""ResNet-18 for small images.

A basic block computes relu(x + F(x)) with F = BN ∘ conv3×3 ∘ relu ∘ BN ∘ conv3×3; where it halves the resolution or
changes the number of channels, x passes a strided 1×1 convolution and a BN first. Two blocks a stage, four stages of w,
2w, 4w and 8w channels, then the mean over all positions: 8w features, 512 for w = 64.

The *CIFAR stem* is one 3×3 convolution of stride 1 and no pooling: the usual 7×7 stem of stride 2 with pooling would
leave 8×8 positions of a 32×32 image before the first block has seen anything.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

STAGES = 4
BLOCKS_PER_STAGE = 2


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """relu(shortcut(x) + F(x)), two 3×3 convolutions deep."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """Images ``[B, 3, H, W]`` to features ``[B, 8 · width]``.

    Args:
        width: Channels of the first stage; 64 is the ResNet-18 of the literature, with 512 features.

    Raises:
        ValueError: If the width is not positive.
    """

    def __init__(self, *, width: int = 64) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width must be at least 1 (64 is the usual ResNet-18), got {width}")
        self.width = width
        self.stem = _conv3x3(3, width, 1)
        self.norm = nn.BatchNorm2d(width)
        blocks = []
        inputs = width
        for stage in range(STAGES):
            outputs = width * 2**stage
            for block in range(BLOCKS_PER_STAGE):
                blocks.append(BasicBlock(inputs, outputs, stride=2 if stage > 0 and block == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.reset_parameters()

    @property
    def feature_dim(self) -> int:
        return self.width * 2 ** (STAGES - 1)

    def reset_parameters(self) -> None:
        """He initialisation; the last scale of every block is zero, so that each block begins as its shortcut."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
        for module in self.modules():
            if isinstance(module, BasicBlock):
                nn.init.zeros_(module.norm2.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(images)), inplace=True)
        return self.blocks(x).mean(dim=(2, 3))
