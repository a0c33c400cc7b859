"""The loop of `difformer.training.loop` for runs trained as one: same epochs, same evaluations, same best epoch.

Nothing is read from the device while it works: everything known about the runs stays there until the end
(`difformer.training.journal`); callbacks look at every evaluation, early stopping looks now and then. So an
epoch is a list of kernels that never changes, and on a GPU it is recorded (`difformer.training.cuda_graph`): `vmap`
takes longer to launch that list than a GPU to execute it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from difformer.data import Task
from difformer.errors import UserError
from difformer.nn.dropout import dropout_keys
from difformer.training.callbacks import Callback
from difformer.training.checkpoint import FORMAT, CheckpointError, Due, Snapshot
from difformer.training.cuda_graph import LARGEST, NotRecordableError, Recorder
from difformer.training.feeds import NodesFeed, Step, make_feed
from difformer.training.journal import RECORDABLE, Group, NonFiniteLossError, Run, StackJournal
from difformer.training.losses import make_loss
from difformer.training.model import acts_alike, hook, prepared_model
from difformer.training.optimizer import StackedAdam, clip_gradients, learning_rate
from difformer.training.record import RunRecord, Status
from difformer.training.run_memory import PARAMETER_COPIES, saved_bytes
from difformer.training.stack_model import StackModel

MOMENTS = ("mean", "square", "steps")  # of the optimiser
LAUNCHED = 2  # epochs that a GPU gets kernel by kernel: they fill caches and make the optimiser


class StackTrainer:
    """Runs that share everything but seed, split and the hyper-parameters in `hyper`.

    Args:
        task: What is to be learnt.
        runs: The runs, those on one split next to each other.
        hyper: Names of model options that differ.
        device: Where to train.
    """

    def __init__(self, task: Task, runs: Sequence[Run], hyper: Sequence[str], device: torch.device) -> None:
        self.task, self.runs, self.device = task, runs, device
        self.config = config = runs[0].config
        cpu = torch.device("cpu")
        models = [prepared_model(task, task.splits[run.split], run.config, run.seed, cpu) for run in runs]
        alike = all(acts_alike(model) for model in models)
        values = {name: [float(run.config.options[name]) for run in runs] for name in hyper}
        self.model = StackModel(models, values, device, hook(models[0], "penalty"))
        self.feed = make_feed(task, task.splits[runs[0].split], config, runs[0].seed, device, models[0])
        self._one_pass = self.feed.whole and alike
        self.groups = self._groups()
        self.keys = dropout_keys([run.seed for run in runs], range(1, config.epochs + 1)).to(device)
        factors = [learning_rate(config, e) / config.learning_rate for e in range(1, config.epochs + 1)]
        rates = torch.tensor([run.config.learning_rate for run in runs], dtype=torch.float64)
        self.rates = (torch.tensor(factors, dtype=torch.float64).unsqueeze(1) * rates).float().to(device)
        self.decays = torch.tensor([run.config.weight_decay for run in runs], dtype=torch.float32, device=device)
        self.optimizer: StackedAdam | None = None  # made at the first gradient, which says what is trained
        self._moments: dict[str, Tensor] = {}  # of the optimiser of a stack that is resumed
        self.epoch, self.seconds = 0, 0.0
        self.journal = StackJournal(task, runs, self.groups, self.model, device)
        self._recorder = Recorder(device)
        self._recorded: dict[bool, torch.cuda.CUDAGraph] = {}
        self._launched: set[bool] = set()  # kinds of turns that a device has had kernel by kernel
        self._can_record = device.type == "cuda" and isinstance(self.feed, NodesFeed) and task.num_nodes <= LARGEST

    def _groups(self) -> list[Group]:
        groups, start = [], 0
        for end in range(1, len(self.runs) + 1):
            if end < len(self.runs) and self.runs[end].split == self.runs[start].split:
                continue
            split = self.task.splits[self.runs[start].split]
            parts = {n: (i.to(self.device), self.task.y[i].to(self.device)) for n, i in split.parts().items()}
            loss = make_loss(self.task, split, self.config, self.device)
            groups.append(Group(slice(start, end), split, loss, parts))
            start = end
        return groups

    def memory(self) -> int:
        """Bytes of one run, from a pass of this stack in training mode."""
        step = next(iter(self.feed.steps(1)))
        leaves = self.model.leaves()
        saved = saved_bytes(lambda: self._forward(step, leaves))
        return saved // len(self.runs) + PARAMETER_COPIES * self.model.flat[0].nbytes

    def run(
        self,
        callbacks: Sequence[Callback] = (),
        stop: Callable[[], bool] | None = None,
        save: Callable[[Snapshot], None] | None = None,
    ) -> Status:
        """Train to the end, or until stopped; `save` gets snapshots to resume from, as often as configured."""
        started, checkpoint = time.perf_counter() - self.seconds, Due(self.config)
        while True:
            # Here the model holds θ_epoch, and every epoch before has been evaluated where that was due.
            last = self.epoch >= self.config.epochs
            due = self.epoch > 0 and (last or self.epoch % self.config.eval_every == 0)
            if not last:
                self._turn(due)
            elif due:
                self.journal.measure(self._evaluate())
            self.seconds = time.perf_counter() - started
            if due:
                self.journal.measured_at.append(self.epoch)
                if callbacks:
                    self.journal.tell(callbacks, self.epoch, self.seconds)
            if last or (due and self.journal.all_stopped()):
                return "finished"
            stopping = stop is not None and stop()
            if save is not None and (stopping or checkpoint(self.epoch + 1)):
                save(self.snapshot(self.epoch + 1))
                checkpoint.done()
            if stopping:
                return "interrupted"
            self.epoch += 1

    def snapshot(self, epoch: int) -> Snapshot:
        """The state of the stack after `epoch` epochs, the last of them not evaluated yet; copied to the CPU."""
        tensors = self._state()
        if self.optimizer is not None:
            tensors |= {f"optimizer.{name}": getattr(self.optimizer, name) for name in MOMENTS}
        facts = {
            "format": FORMAT,
            "runs": self._names(),
            "epoch": epoch,
            "measured_at": list(self.journal.measured_at),
            "seconds": self.seconds,
        }
        return Snapshot({name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}, facts)

    def restore(self, snapshot: Snapshot) -> None:
        """Continues from a snapshot of the same stack.

        Raises:
            CheckpointError: If it is one of other runs.
        """
        if snapshot.facts.get("runs") != self._names():
            raise CheckpointError("the checkpoint is of a stack of other runs")
        try:
            for name, value in self._state().items():
                value.copy_(snapshot.tensors[name])
            self._moments = {name: snapshot.tensors[f"optimizer.{name}"] for name in MOMENTS}
            if not {value.shape for value in self._moments.values()} <= {self.model.flat.shape, (1,)}:
                raise UserError("its moments do not belong to the parameters")
            if not 0 <= int(self.journal.clock) <= self.config.epochs:
                raise UserError(f"it is of epoch {int(self.journal.clock)}")
            self.journal.measured_at = [int(epoch) for epoch in snapshot.facts["measured_at"]]
            self.epoch, self.seconds = snapshot.epoch, float(snapshot.facts["seconds"])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint is of another model: {error}") from error

    def _names(self) -> list[list[int]]:
        return [[run.seed, run.split] for run in self.runs]

    def _state(self) -> dict[str, Tensor]:
        """Everything that changes while the stack trains, except the moments of the optimiser."""
        journal = self.journal
        kept = ("clock", "losses", "measured", "best", "best_epoch", "best_flat", "ended", "broken")
        found = {"flat": self.model.flat} | {f"journal.{name}": getattr(journal, name) for name in kept}
        found |= {f"buffer.{name}": value for name, value in self.model.buffers.items()}
        return found | {f"best_buffer.{name}": value for name, value in journal.best_buffers.items()}

    def _turn(self, due: bool) -> None:
        """Epoch `self.epoch` + 1, after an evaluation of the last one where that is due; a replay where possible."""
        graph = self._recorded.get(due)
        if graph is None and self._may_record(due):
            try:
                graph = self._recorder.record(lambda: self._turn_by_kernels(due))
            except NotRecordableError as error:
                self._can_record = False
                self.journal.notes.append(str(error))
        if graph is not None:
            self._recorded[due] = graph
            graph.replay()
        else:
            self._turn_by_kernels(due)
            self._launched.add(due)

    def _may_record(self, due: bool) -> bool:
        """Whether a turn of this kind can be recorded now: what it keeps for later must be there already."""
        waits = due and self.journal.metric.name not in RECORDABLE
        return self._can_record and self.epoch >= LAUNCHED and due in self._launched and not waits

    def _turn_by_kernels(self, due: bool) -> None:
        leaves = self.model.leaves()
        passed = self._first_pass(leaves) if self._one_pass else None
        if due:
            self.journal.measure(self._evaluate() if passed is None else passed[0].detach())
        self._train(leaves, passed)
        self.journal.clock += 1

    def _forward(self, step: Step, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        keys = self.keys.index_select(0, self.journal.clock)[0]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            return self.model.outputs(step.inputs.outputs, leaves, keys=keys)

    def _first_pass(self, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        self.model.site = 0
        return self._forward(next(iter(self.feed.steps(self.epoch + 1))), leaves)

    def _train(self, leaves: dict[str, Tensor], passed: tuple[Tensor, Tensor] | None) -> None:
        recorded = torch.zeros(len(self.runs), device=self.device)
        gradient: Tensor | None = None
        self.model.site = 0
        for step in self.feed.steps(self.epoch + 1):
            outputs, penalty = self._forward(step, leaves) if passed is None else passed
            losses = torch.cat([self._loss(group, step, outputs[group.runs]) for group in self.groups])
            recorded += step.part * losses.detach()
            total = ((losses + penalty) * step.share).sum()  # runs share nothing: its gradient is that of each
            parts = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
            flat = self._join(leaves, parts)
            gradient = flat if gradient is None else gradient.add_(flat)
            if step.update:
                if self.config.gradient_clip is not None:
                    clip_gradients(gradient, self.config.gradient_clip)
                assert self.optimizer is not None
                self.optimizer.step(gradient, self.rates.index_select(0, self.journal.clock)[0])
                gradient = None
        self.journal.losses.index_copy_(0, self.journal.clock, recorded.unsqueeze(0))

    def _loss(self, group: Group, step: Step, outputs: Tensor) -> Tensor:
        if len(self.groups) > 1:  # whole graphs alone, see `train_stacked`: each split has its own rows
            index, targets = group.parts["train"]
            step = dataclasses.replace(step, rows=index, targets=targets)
        return torch.vmap(lambda run: group.loss(step.select(run).float(), step.targets))(outputs)

    def _join(self, leaves: dict[str, Tensor], parts: Sequence[Tensor | None]) -> Tensor:
        """Gradients as rows ``[runs, P]``."""
        if self.optimizer is None:
            columns = None
            if any(part is None for part in parts):
                pairs = zip(leaves.values(), parts, strict=True)
                columns = torch.cat([torch.full_like(leaf[0].reshape(-1), part is not None) for leaf, part in pairs])
            decoupled = self.config.decoupled
            self.optimizer = StackedAdam(self.model.flat, self.decays, decoupled=decoupled, columns=columns)
            for name, value in self._moments.items():
                getattr(self.optimizer, name).copy_(value)
        pairs = zip(leaves.values(), parts, strict=True)
        return torch.cat(
            [(torch.zeros_like(leaf) if part is None else part).reshape(len(self.runs), -1) for leaf, part in pairs], 1
        )

    @torch.no_grad()
    def _evaluate(self, flat: Tensor | None = None, buffers: dict[str, Tensor] | None = None) -> Tensor:
        parameters = self.model.parameters(self.model.flat if flat is None else flat)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            return self.model.outputs(self.feed.outputs, parameters, buffers)[0].float()

    def records(self, status: Status) -> list[RunRecord | NonFiniteLossError]:
        """One per run, in their order; an error in place of a run whose loss did not stay finite."""
        outputs = self._evaluate(self.journal.best_flat, self.journal.best_buffers).cpu()
        return self.journal.records(outputs, self.epoch, status, self.seconds)
