"""A layer and a mesh of devices go in; the same layer with its heads apart comes out.

Heads do not see each other between the projections and `out_proj`, so each device keeps those of
its heads alone (Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053): one sum over devices for the
output, and one for each projection in the backward pass.

    ==================================  =========================================
    parameter                           placement
    ==================================  =========================================
    NAME_proj.weight, gate_proj.weight  Shard(0): the rows of a device's heads
    NAME_proj.bias                      Shard(0)
    NAME_conv.weight                    Shard(0)
    a param per head or group           Shard(0)
    out_proj.weight                     Shard(1): the columns of a device's heads
    norms                               Replicate()
    the first half of a low rank        Shard(0), its values gathered
    projection
    ==================================  =========================================
"""

from __future__ import annotations

from typing import Any

from lacc.distributed.ring import apart
from lacc.runtime.kernel import Kernel


def tensor_parallel(kernel: Kernel, layer: Any, mesh: Any) -> Any:
    """Parts the heads of ``layer``, made by ``kernel.layer``, over the one axis of a
    `DeviceMesh` and returns it. x and y stay whole on every device; caches hold a device's heads.

    Weights become DTensors with the placements above, of what the layer holds on the first device,
    so checkpoints and optimizers see whole tensors. Raises ValueError where heads cannot be apart:
    a spec that reads `head` or `H`, inputs or states that all heads share, several outputs,
    buffers, and numbers of heads or groups that the mesh does not divide.
    """
    from torch import nn
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    name, count = kernel.signature.name, mesh.size()
    if mesh.ndim != 1:
        raise ValueError(f"mesh: expected one axis, got {mesh.ndim}; take the one of heads")
    if not apart(kernel.spec):
        raise ValueError(f"tensor_parallel: {name} has a state for all heads, or reads their index")
    if len(kernel.signature.outputs) > 1:
        raise ValueError(f"tensor_parallel: {name} has several outputs")
    for value in (*layer.fed, *layer.learned):
        if value.level not in ("head", "group"):
            raise ValueError(f"tensor_parallel: all heads of {name} share {value.name}")
    if layer.fixed:
        raise ValueError(f"tensor_parallel: {name} has the buffer {layer.fixed[0]}")
    for what in ("num_heads", "num_groups"):
        if getattr(layer, what) % count:
            raise ValueError(f"{what}: expected a multiple of {count}, got {getattr(layer, what)}")
    plan: dict[str, Any] = {"out_proj": RowwiseParallel()}
    if layer.gate_proj is not None:
        plan["gate_proj"] = ColwiseParallel()
    for value in layer.fed:
        module = layer.get_submodule(f"{value.name}_proj")
        low = isinstance(module, nn.Sequential)
        if low:
            plan[f"{value.name}_proj.0"] = ColwiseParallel(output_layouts=Replicate())
        plan[f"{value.name}_proj{'.1' if low else ''}"] = ColwiseParallel()
    parallelize_module(layer, mesh, plan)

    def placed(module: nn.Module, parameter: str, placement: Any) -> None:
        whole = getattr(module, parameter).detach()
        parted = nn.Parameter(distribute_tensor(whole, mesh, [placement]))
        hook: Any = parted.register_hook
        hook(lambda grad: grad.redistribute(placements=[placement]))
        module.register_parameter(parameter, parted)

    for value in layer.learned:
        placed(layer, value.name, Shard(0))
    for path, module in layer.named_modules():
        if isinstance(module, nn.Conv1d):
            placed(module, "weight", Shard(0))
        elif isinstance(module, nn.RMSNorm) and path:
            placed(module, "weight", Replicate())
    layer.num_heads //= count
    layer.num_groups //= count
    values = {v.name: v for v in layer.values}
    layer.shapes = {
        name: (shape[0] // count, *shape[1:]) if values[name].level in ("head", "group") else shape
        for name, shape in layer.shapes.items()
    }
    return layer
