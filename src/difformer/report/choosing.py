"""Which instances a report explains by itself: surprising ones of the test part."""

from __future__ import annotations

import torch

from difformer.report.explanation import Place
from difformer.report.gathering import Material
from difformer.report.scene import usual_number

WRONG, NARROW = 2, 1


def worth_explaining(material: Material) -> list[Place]:
    """Confident errors and a narrow success; of a series the largest error of its snapshot, of graphs the one shown."""
    task, outputs = material.task, material.outputs
    number = usual_number(material.loaded)
    if task.kind == "graphs":
        assert number is not None
        return [number]
    if task.kind == "series":
        assert number is not None
        gap = (outputs[number].reshape(task.y[number].shape) - task.y[number]).abs()
        flat = gap.reshape(gap.shape[0], -1).sum(1).nan_to_num(-1)
        return [(number, int(flat.argmax()))]
    part = material.loaded.split.parts()[material.part]
    if not part.numel():
        return []
    if task.problem == "multiclass":
        return _surprising(part, outputs[part], task.y[part])
    if task.problem == "multilabel":
        targets = task.y[part].reshape(outputs[part].shape)
        sign = torch.where(targets > 0.5, 1.0, -1.0)
        loss = torch.nn.functional.softplus(-sign * outputs[part]).masked_fill(targets.isnan(), 0).sum(1)
        return [int(part[i]) for i in loss.topk(min(WRONG, part.numel())).indices]
    gap = (outputs[part].reshape(task.y[part].shape) - task.y[part]).abs().reshape(part.numel(), -1).sum(1)
    return [int(part[i]) for i in gap.nan_to_num(-1).topk(min(WRONG, part.numel())).indices]


def _surprising(part: torch.Tensor, outputs: torch.Tensor, targets: torch.Tensor) -> list[Place]:
    top = outputs.softmax(-1).topk(min(2, outputs.shape[1]), dim=-1)
    margin = top.values[:, 0] - (top.values[:, 1] if outputs.shape[1] > 1 else 0)
    wrong = (top.indices[:, 0] != targets) & (targets >= 0)
    found: list[Place] = []
    for which, sign, count in ((wrong, -1, WRONG), (~wrong & (targets >= 0), 1, NARROW)):
        rows = which.nonzero().squeeze(1)
        found += part[rows[(sign * margin[rows]).argsort()[:count]]].tolist()
    return found
