"""Liveness of ranks: if a rank dies, all others must end soon, and name it.

Every rank has a heartbeat: a thread increments a key in the group's store once per second, and reads that of the next
rank. If that does not change for `SILENCE` seconds, or its process no longer exists (on one machine that is visible at
once), the rank is dead, and the observer writes so into the store, where all ranks read it. A rank that fails writes
the reason there before it ends. A rank that reads of a failure gives its main thread `GRACE` seconds to raise
`RankLostError` from the collective it waits in, and then ends the process: some collectives never return. The store is
on the machine of rank 0; a second thread treats a store that no longer answers as the loss of rank 0.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

BEAT = 1.0  # seconds
SILENCE = 12.0
GRACE = 5.0
EXIT_CODE = 3
FAILURE = "difformer/failure"


class RankLostError(OSError):
    """Another process of the group has died; the message says which."""


@dataclass
class Watch:
    """This rank's heartbeat thread."""

    rank: int
    size: int
    store: Any
    failure: str | None = None
    _beats: int = 0
    _told: bool = False
    _places: dict[int, dict[str, Any]] = field(default_factory=dict)
    _thread: threading.Thread | None = None
    _ended: threading.Event = field(default_factory=threading.Event)
    _found: threading.Event = field(default_factory=threading.Event)

    @staticmethod
    def start(rank: int, size: int) -> Watch:
        """Starts the threads, with their own connection: the group's may be held by a thread that waits."""
        store: Any = dist.distributed_c10d._get_default_store()
        store = store.clone() if hasattr(store, "clone") else store
        where = {"host": socket.gethostname(), "process": os.getpid(), "machine": _machine()}
        store.set(f"difformer/where/{rank}", json.dumps(where))
        watch = Watch(rank, size, store)
        # Waits for rank 0, so that it can be named as soon as it is gone, and the store with it.
        watch._places[0] = dict(json.loads(store.get("difformer/where/0")))
        watch._thread = threading.Thread(target=watch._run, name="difformer-watch", daemon=True)
        watch._thread.start()
        threading.Thread(target=watch._guard, name="difformer-watch-store", daemon=True).start()
        return watch

    def stop(self) -> None:
        """This rank has finished; the rank that monitors it is told."""
        if self.rank == 0 and (self.failure is not None or self._told):
            # The store may end with rank 0, and with it the name of the failed rank: the others read it once per beat.
            time.sleep(2 * BEAT)
        self._ended.set()
        if self._thread is not None:
            self._thread.join(GRACE)

    def tell(self, error: Exception) -> None:
        """Writes why this rank fails, unless another failed first."""
        if not isinstance(error, RankLostError) and self.failure is None:
            self._told = True
            self._report(f"rank {self.rank} ({self._where(self.rank)}) failed: {type(error).__name__}: {error}")

    def wait(self, seconds: float) -> str | None:
        """What has failed, if that becomes known within that time."""
        self._found.wait(seconds)
        return self.failure

    def _known(self, rank: int) -> dict[str, Any]:
        key = f"difformer/where/{rank}"
        if rank not in self._places and self.store.check([key]):
            self._places[rank] = dict(json.loads(self.store.get(key)))
        return self._places.get(rank, {})

    def _where(self, rank: int) -> str:
        known = self._known(rank)
        return f"{known['host']}, process {known['process']}" if known else "never seen"

    def _is_dead(self, rank: int) -> bool:
        """Whether its process is on this machine, and no longer alive."""
        known = self._known(rank)
        if not known or known["machine"] != _machine() or not _machine():
            return False
        try:
            with open(f"/proc/{known['process']}/stat") as file:
                return file.read().rsplit(")", 1)[-1].split()[0] in "ZX"
        except FileNotFoundError:
            return True

    def _report(self, text: str) -> None:
        try:
            # Only the first report counts: later ones are its consequences and would name the wrong rank.
            self.store.compare_set(FAILURE, "", text)
        except RuntimeError:  # the store is gone as well
            self.failure = self.failure or text

    def _run(self) -> None:
        watched = (self.rank + 1) % self.size
        last, seen = "", time.monotonic()
        while not self._ended.is_set():
            try:
                self._beats += 1
                self.store.set(f"difformer/beat/{self.rank}", str(self._beats))
                if self.store.check([FAILURE]):
                    self._fail(self.store.get(FAILURE).decode())
                    return
                key = f"difformer/beat/{watched}"
                now = self.store.get(key).decode() if self.store.check([key]) else ""
                if now in ("done", "") or now != last:
                    last, seen = now, time.monotonic() if now else seen
                if now != "done" and self._is_dead(watched):
                    self._report(f"rank {watched} ({self._where(watched)}) is gone: its process was killed")
                elif now != "done" and time.monotonic() - seen > SILENCE:
                    self._report(
                        f"rank {watched} ({self._where(watched)}) is gone: no heartbeat for "
                        f"{SILENCE:.0f} s; its process hangs, or its machine cannot be reached"
                    )
            except RuntimeError as error:
                self._fail(self._store_lost(str(error).partition("\n")[0]))
                return
            self._ended.wait(BEAT)
        try:
            self.store.set(f"difformer/beat/{self.rank}", "done")
        except RuntimeError:  # the process with the store has ended before
            return

    def _guard(self) -> None:
        """Ends the wait for a store that never answers: its process hangs, or its machine cannot be reached."""
        last, silent = 0, 0.0
        while not self._ended.wait(BEAT):
            if self._found.is_set():
                return
            # Counted in own rounds, not by the clock: this process itself may have been suspended.
            last, silent = self._beats, silent + BEAT if self._beats == last else 0.0
            if silent >= SILENCE:
                self._fail(self._store_lost(f"no answer for {SILENCE:.0f} s"))
                return

    def _store_lost(self, why: str) -> str:
        where = self._where(0)  # known from the start: the store is not asked
        return f"rank 0 ({where}) is gone, or the launcher on its machine, which keeps the store of the group: {why}"

    def _fail(self, text: str) -> None:
        self.failure = text
        self._found.set()
        if not self._ended.wait(GRACE):
            print(f"error: {text}", file=sys.stderr, flush=True)
            os._exit(EXIT_CODE)


def _machine() -> str:
    """What tells a machine, and the numbering of its processes, from all others; empty if that is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


@contextmanager
def name_lost_rank(watch: Watch | None) -> Iterator[None]:
    """A collective that breaks becomes a `RankLostError` that names the rank, as soon as that is known."""
    try:
        yield
    except RuntimeError as error:
        if watch is None:
            raise
        named = watch.wait(SILENCE + 3 * BEAT)
        raise RankLostError(named or f"an unknown rank of the group is gone: {error}") from error
