"""Which epoch is kept where labelled rows are held out: the most accurate, and of equally accurate ones the surest.

On n held-out rows accuracy moves in steps of 1/n, and an easy table has every row right long before training is done.
Accuracy alone would keep the first of those epochs. With L the mean cross-entropy of the held-out rows,

    accuracy + ε / (1 + L),    ε = min(½ / n, 10⁻⁵),

orders epochs by accuracy, since what is added is less than one step, and by likelihood where accuracy is the same. It
is also too little to be seen where the value is printed as an accuracy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from difformer.training.metrics import Metric

UNSEEN = 1e-5  # in four digits


def accuracy_then_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of logits ``[n, C]`` and classes ``[n]``, all of them known."""
    accuracy = (outputs.argmax(1) == targets).to(torch.float64).mean()
    entropy = functional.cross_entropy(outputs.to(torch.float64), targets)
    return accuracy + min(0.5 / targets.shape[0], UNSEEN) / (1 + entropy)


ACCURATE_THEN_SURE = Metric("accuracy, then likelihood", True, ("multiclass",), accuracy_then_likelihood)
