"""What a process sets on the device where its clients train."""

from __future__ import annotations

import torch


def full_precision(device: torch.device) -> None:
    """On a GPU, compute float32 products in float32 and not in TF32, whose mantissa has 10 bits.

    Torch leaves TF32 of matrix products off unless someone turns it on; placements are to agree whoever has.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
