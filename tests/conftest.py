"""What tests share: quiet threads, and where real data are."""

from __future__ import annotations

import os

# Before torch is loaded: threads that spin cost many times more on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
