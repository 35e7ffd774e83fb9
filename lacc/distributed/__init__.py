"""Kernels and layers on many devices: a sequence's tokens apart, or a layer's heads."""

from lacc.distributed.context import context_parallel
from lacc.distributed.heads import tensor_parallel
from lacc.distributed.together import together

__all__ = ["context_parallel", "tensor_parallel", "together"]
