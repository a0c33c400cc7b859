"""What tests share: quiet threads, and where real data are."""

from __future__ import annotations

import os

import hypothesis

# Before torch is loaded: threads that spin cost many times more on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Time is no property of the code under test: a busy machine must not fail an example.
hypothesis.settings.register_profile("difformer", deadline=None)
hypothesis.settings.load_profile("difformer")
