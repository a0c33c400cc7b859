"""What the form of attention decides: the encoder of DIFFormer-s with other diffusivities, everything else the same."""

from __future__ import annotations

from difformer.experiments.plan import Experiment, System
from difformer.experiments.sections import CUSTOMARY, citation_graphs, small_blocks
from difformer.experiments.systems import DIFFORMER_A, DIFFORMER_S, OFF

_FORMS = {"identity": "identity", "constant": "all one", "softmax": "softmax", "gaussian": "kernel (Gaussian)"}

EXPERIMENT = Experiment(
    name="attention-ablation",
    title="Forms of attention",
    about="identity, all one, softmax, kernel, simple, sigmoid and off on the three citation graphs (figure)",
    source="The paper's Figure of attention functions (fig-abl)",
    data=citation_graphs("ten random splits", "random", 10),
    systems=(
        *(
            System(form, label, "difformer", "variant", base="difformer-s", settings={"diffusivity": form})
            for form, label in _FORMS.items()
        ),
        DIFFORMER_S,
        DIFFORMER_A,
        OFF,
    ),
    untuned=CUSTOMARY,
    quick_data=(small_blocks(),),
    quick_settings={"epochs": 4, "hidden_channels": 8},
    only_presets=("paper", "best"),
    notes=(
        "All forms but sigmoid, which has presets of its own, run with the settings of DIFFormer-s.",
        "Under the settings called best queries and keys are divided by the norm of the whole tensor, as the authors' "
        "code does: every score is then the same to 1/N, and all one, softmax, kernel and simple can hardly differ.",
    ),
)
