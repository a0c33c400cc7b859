"""What all estimators share: their options, fitting, and predictions in the context of the fitted population."""

from __future__ import annotations

import numbers
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from difformer.diffusivity import Diffusivity
from difformer.estimators.assemble import assemble
from difformer.estimators.export import export_program
from difformer.estimators.fitted import Fitted
from difformer.estimators.fitting import Recipe
from difformer.estimators.graphs import as_matrix
from difformer.estimators.saving import TEXTS, load_estimator, plain_list, save_estimator
from difformer.estimators.threads import threads_for
from difformer.nn import PretrainedError

if TYPE_CHECKING:
    from typing_extensions import Self

Array = np.ndarray[Any, Any]


class DIFFormerEstimator(BaseEstimator):
    """Options and fitting of `DIFFormerClassifier`, `DIFFormerRegressor` and `DIFFormerTransformer`.

    ``__init__`` only stores its arguments; whatever `fit` finds out ends in an underscore.

    Args:
        hidden_channels: Length of a state.
        num_layers: Diffusion steps.
        num_heads: Heads, averaged.
        diffusivity: ``"simple"`` costs time linear in the number of rows, and O(d²) a layer for a new row; others
            (``"sigmoid"``, ``"gaussian:0.5"``, a `Diffusivity`) look at pairs.
        graph: Observed structure where `fit` is given none: None for latent structure alone, ``"knn"`` for an edge from
            each row's nearest rows to it, ``"auto"`` for whichever of the two predicts held-out labelled rows better.
        neighbours: Nearest rows of the neighbour graph, the row itself counted.
        graph_weight: None adds what comes over edges to what comes over latent structure; w in [0, 1] mixes them.
        step_size: τ in (0, 1].
        source_weight: β, weight of the initial states in every step.
        transform_values: Whether each layer has a linear map of its own for the values that travel.
        dropout: Of states, while training.
        steps: Gradient steps of each model; with a held-out part up to three times as many.
        learning_rate: Of Adam.
        weight_decay: λ of ½λ‖w‖².
        n_models: Models from different initial weights; their outputs are averaged.
        validation_fraction: Share of the labelled rows that is held out to choose the epoch, where there are at least
            1,000; fewer are all trained on.
        batch_size: Rows of a mini-batch; None takes the whole population at once or, where pairs are looked at and
            there are more than 20,000 rows, 4,096 of them.
        landmarks: How many rows stand for the population when new rows are predicted, where pairs are looked at; None
            keeps all of up to 10,000, and 4,096 of more.
        standardize: Whether features are brought to a common scale, see `difformer.estimators.scaling`.
        backend: Operator for all pairs while training, see `difformer.attention.propagate`.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``; predictions are made on the CPU.
        random_state: Seed, generator, or None for a new one each time.
        verbose: Whether lines about the progress of `fit` are printed.
    """

    fitted_: Fitted

    def __init__(
        self,
        *,
        hidden_channels: int = 64,
        num_layers: int = 4,
        num_heads: int = 1,
        diffusivity: str | Diffusivity = "simple",
        graph: Any = "auto",
        neighbours: int = 10,
        graph_weight: float | None = None,
        step_size: float = 0.5,
        source_weight: float = 0.0,
        transform_values: bool = False,
        dropout: float = 0.0,
        steps: int = 200,
        learning_rate: float = 0.01,
        weight_decay: float = 1e-3,
        n_models: int = 3,
        validation_fraction: float = 0.1,
        batch_size: int | None = None,
        landmarks: int | None = None,
        standardize: bool = True,
        backend: str = "auto",
        device: str = "auto",
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.diffusivity = diffusivity
        self.graph = graph
        self.neighbours = neighbours
        self.graph_weight = graph_weight
        self.step_size = step_size
        self.source_weight = source_weight
        self.transform_values = transform_values
        self.dropout = dropout
        self.steps = steps
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.n_models = n_models
        self.validation_fraction = validation_fraction
        self.batch_size = batch_size
        self.landmarks = landmarks
        self.standardize = standardize
        self.backend = backend
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags

    def _table(self, x: Any, y: Any, sample_weight: Any) -> tuple[Any, Array | None]:
        """Features and weights for `fit`, checked."""
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        x = self._features(x, reset=True)
        if sample_weight is None:
            return x, None
        return x, _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)

    def _features(self, x: Any, *, reset: bool) -> Any:
        """Float64, dense or CSR; names and number of columns are noted, or compared with those noted."""
        checked = validate_data(self, x, reset=reset, accept_sparse="csr", dtype=np.float64, order="C")
        if sparse.issparse(checked):
            checked = sparse.csr_array(checked, copy=True)
            checked.sum_duplicates()
            checked.eliminate_zeros()
        return checked

    def _fit(
        self, x: Any, target: Array, num_outputs: int, weight: Array | None, graph: Any, *, embed: bool = False
    ) -> Array:
        """Outputs of the rows of a checked table, or their states."""
        self._check_options()
        recipe = self._recipe()
        with threads_for(recipe.numbers(x.shape[0], x.nnz / x.shape[0] if sparse.issparse(x) else x.shape[1])):
            found = assemble(
                x,
                target,
                weight,
                num_outputs=num_outputs,
                graph=self.graph if graph is None else graph,
                neighbours=int(self.neighbours),
                landmarks=self.landmarks,
                standardize=self.standardize,
                recipe=recipe,
                embed=embed,
            )
        self.fitted_ = found.fitted
        self.graph_ = found.graph
        self.n_iter_ = max(record.epochs for record in found.records)
        self.loss_ = float(np.mean([record.loss for record in found.records]))
        return found.rows

    def _recipe(self) -> Recipe:
        options = {
            name: getattr(self, name)
            for name in ("diffusivity", "step_size", "source_weight", "graph_weight", "dropout", "backend")
        }
        if options["diffusivity"] in ("constant", "identity"):
            options["backend"] = "auto"  # neither has scores for a backend to work out
        counts = {name: int(getattr(self, name)) for name in ("hidden_channels", "num_layers", "num_heads")}
        return Recipe(
            options={**counts, **options, "transform": self.transform_values},
            steps=int(self.steps),
            learning_rate=float(self.learning_rate),
            weight_decay=float(self.weight_decay),
            n_models=int(self.n_models),
            validation_fraction=self.validation_fraction,
            batch_size=self.batch_size,
            device=self.device,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            speaker=type(self).__name__ if self.verbose else None,
        )

    def _check_options(self) -> None:
        """What training would not notice, or would call by another name."""
        counts = ("hidden_channels", "num_layers", "num_heads", "neighbours", "steps", "n_models")
        for name in counts + tuple(n for n in ("batch_size", "landmarks") if getattr(self, n) is not None):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        share = self.validation_fraction
        if not isinstance(share, numbers.Real) or not 0 <= share < 1:
            raise ValueError(f"validation_fraction must lie in [0, 1), got {share!r}")
        for name in ("standardize", "transform_values"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")

    def _asked(self, x: Any, graph: Any) -> tuple[Any, Any]:
        """Rows to predict, checked, and their edges from fitted rows."""
        check_is_fitted(self, "fitted_")
        x = self._features(x, reset=False)
        if graph is None:
            return x, None
        given = self.fitted_.given
        if given is None:
            raise ValueError(
                "graph was given for rows to predict, but fit was given none; pass one to fit as well, or leave it out"
            )
        return x, as_matrix(graph, x.shape[0], given.degree.numel())

    def _outputs(self, x: Any, graph: Any) -> Array:
        x, edges = self._asked(x, graph)
        return self.fitted_.outputs(x, edges)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes ``estimator.json`` and ``context.safetensors``; see `difformer.estimators.saving`."""
        check_is_fitted(self, "fitted_")
        save_estimator(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, diffusivity: Diffusivity | None = None) -> Self:
        """Reads what `save_pretrained` wrote; neither the training table nor anything executable is needed.

        Args:
            folder: Where it was saved.
            diffusivity: Yours, where the estimator was fitted with one that a name does not say.
        """
        found = load_estimator(folder, diffusivity=diffusivity)
        if not isinstance(found, cls):
            raise PretrainedError(f"{folder} holds a {type(found).__name__}, not a {cls.__name__}")
        return found

    def export(self, path: str | Path) -> None:
        """Writes a program that predicts without this package; see `difformer.estimators.export`."""
        check_is_fitted(self, "fitted_")
        facts = {name: plain_list(getattr(self, name)) for name in TEXTS if hasattr(self, name)}
        export_program(self.fitted_, path, states=hasattr(self, "transform"), facts=facts)
