"""P processes that form a group and do what they are told, several times; torch is loaded once for all of them."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from contextlib import closing
from multiprocessing.connection import wait

TIMEOUT = 120


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def starter():
    """Starts processes from a server that has loaded torch already."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    # Adam and operators of our own load torch's compiler, which takes seconds in every process.
    ours = ["difformer.distributed.rank_runs", "difformer.distributed.rank_runs"]
    context.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", *ours])
    return context


def _serve(rank, size, port, pipe):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    import torch

    from difformer.distributed.process_group import join

    torch.set_num_threads(1)
    with join("cpu", watched=False) as ranks:
        while (job := pipe.recv()) is not None:
            work, args = job
            try:
                pipe.send((True, work(ranks, *args)))
            except Exception:
                pipe.send((False, traceback.format_exc()))


class Group:
    """``group(work, *args)`` calls ``work(ranks, *args)`` in every process and returns what they answer, by rank."""

    def __init__(self, size: int) -> None:
        context = starter()
        port = free_port()
        self.pipes, self.processes, self.broken = [], [], False
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, port, there), daemon=True)
            process.start()
            self.pipes.append(here)
            self.processes.append(process)

    def __call__(self, work, *args):
        for pipe in self.pipes:
            pipe.send((work, args))
        answers, waiting, until = {}, list(self.pipes), time.monotonic() + TIMEOUT
        while waiting:
            ready = wait(waiting, max(0.0, until - time.monotonic()))
            self.broken = not ready
            assert ready, f"no answer within {TIMEOUT} s of ranks {[self.pipes.index(pipe) for pipe in waiting]}"
            for pipe in ready:
                rank = self.pipes.index(pipe)
                well, answers[rank] = pipe.recv()
                self.broken = not well  # the others may wait for this one for ever
                assert well, f"rank {rank}: {answers[rank]}"
                waiting.remove(pipe)
        return [answers[rank] for rank in range(len(self.pipes))]

    def close(self) -> None:
        for pipe in self.pipes:
            if not self.broken:
                pipe.send(None)
        for process in self.processes:
            process.join(0 if self.broken else 10)
            if process.is_alive():
                process.kill()
