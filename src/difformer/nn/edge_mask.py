"""Edge masks of PyTorch Geometric's explainers.

An explainer looks for `MessagePassing` modules among ``model.modules()`` and sets a mask m ``[E]`` on each of them; the
message along edge e is then multiplied by σ(m_e), after normalisation. Once torch_geometric is loaded, a layer shows
such a module beside itself (`mask_holder`), takes the mask from there (`mask_of`) and leaves the fused kernels. The
package itself never loads torch_geometric.
"""

from __future__ import annotations

import functools
import sys
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_HOLDERS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # beside the layers, so that no file contains them


@functools.cache
def _holder_class(base: type[nn.Module]) -> type[nn.Module]:
    class EdgeMask(base):  # type: ignore[misc, valid-type]
        """What explainers expect of a layer, without any messages of its own."""

        explain: bool | None = None
        flow = "source_to_target"

        def __init__(self) -> None:
            nn.Module.__init__(self)  # a MessagePassing generates code when it is made
            self._edge_mask = self._loop_mask = None
            self._apply_sigmoid = True

        def __repr__(self) -> str:
            return "EdgeMask()"

    return EdgeMask


def mask_holder(layer: nn.Module) -> nn.Module | None:
    """The module on which explainers set the masks of `layer`; None while torch_geometric is not loaded."""
    base = getattr(sys.modules.get("torch_geometric.nn.conv"), "MessagePassing", None)
    if base is None or torch.compiler.is_compiling():
        return None
    if layer not in _HOLDERS:
        _HOLDERS[layer] = _holder_class(base)()
    return _HOLDERS[layer]


def mask_of(layer: nn.Module) -> Tensor | None:
    """Factors ``[E]`` of the messages that an explainer asks for; None where there is none."""
    if torch.compiler.is_compiling() or not _HOLDERS:
        return None
    holder = _HOLDERS.get(layer)
    if holder is None or not holder.explain or holder._edge_mask is None:
        return None
    return holder._edge_mask.sigmoid() if holder._apply_sigmoid else holder._edge_mask
