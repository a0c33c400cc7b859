"""What all estimators share: options, fitting, and predictions in the context of the fitted population."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from difformer.data.sparse import feature_tensor
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.estimators.estimator_files import TEXTS, load_estimator, plain_list, save_estimator
from difformer.estimators.options import OPTIONS
from difformer.estimators.population import Scaling, has_target, make_population, row_digests
from difformer.estimators.predictor import GivenGraph, Predictor, Search, remember
from difformer.estimators.problem import NO_EDGES, Edges, Problem, Recipe, say, threads_for
from difformer.estimators.program import export_program
from difformer.estimators.row_graph import KINDS, RowGraph, as_matrix, receiving
from difformer.estimators.row_search import RowSearch, SparseRowSearch
from difformer.estimators.selection import ENOUGH, train_and_choose
from difformer.nn import PretrainedError
from difformer.sparse import check_scipy

if TYPE_CHECKING:
    from typing_extensions import Self

Array = np.ndarray[Any, Any]

FEWEST_ROWS, MOST_ROWS = 32, 10_000  # between which graph="auto" considers the neighbour graph
FULL_POPULATION = 10_000  # rows up to which all keys are remembered, where keys are
LANDMARKS = 4096
DROPOUT = 0.2  # with few labels


class DIFFormerEstimator(BaseEstimator):
    """Options and fitting of `DIFFormerClassifier`, `DIFFormerRegressor` and `DIFFormerTransformer`.

    ``__init__`` only stores its arguments; attributes that `fit` sets end in an underscore.

    Args:
        hidden_channels: Length of a state.
        num_layers: Diffusion steps.
        num_heads: Heads, averaged.
        diffusivity: ``"simple"`` costs time linear in the number of rows, and O(d²) per layer for a new row; others
            (``"sigmoid"``, ``"gaussian:0.5"``, a `Diffusivity`) compare pairs.
        graph: Observed structure if `fit` is given none: None for latent structure alone, ``"knn"`` for an edge from
            each row's nearest rows to it, ``"auto"`` for whichever of the two predicts held-out labelled rows better,
            edges among the rows of the table to fit, or a `RowGraph`, which follows rows into folds.
        directed: Whether edges that you give have a direction. By default an edge goes both ways.
        neighbours: Nearest rows in the neighbour graph, the row itself included.
        graph_weight: None adds the graph term to the latent one; w in [0, 1] mixes them.
        step_size: τ in (0, 1].
        source_weight: β, weight of the initial states in every step.
        transform_values: Whether each layer has its own linear map for the values it propagates.
        dropout: Of states, while training; None is 0.2 with fewer than 500 labelled rows, and 0 with more.
        steps: Gradient steps of each model at most; up to three times as many where a share of the labels is held out.
        learning_rate: Of Adam.
        weight_decay: λ of ½λ‖w‖²; None is 1 / (labelled rows), as in `LogisticRegression`, but at most 0.02.
        n_models: Models from different initial weights; their outputs are averaged.
        validation_fraction: Share of the labelled rows that is held out to choose epoch, graph and temperature, however
            many there are; 0 holds out none. None is 0.1 if at least 500 rows are labelled; with fewer,
            cross-validation chooses, and all labelled rows are trained on.
        batch_size: Rows per mini-batch; None takes the whole population at once, or mini-batches of large tables.
        landmarks: How many rows represent the population when new rows are predicted, where pairs are compared; None
            keeps all of up to 10,000, and 4,096 of more.
        standardize: Whether features are brought to a common scale, see `difformer.estimators.population`.
        backend: Operator for all pairs while training, see `difformer.attention.propagate`.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``; predictions are made on the CPU.
        random_state: Seed, generator, or None for a new one each time.
        verbose: Whether lines about the progress of `fit` are printed.
    """

    fitted_: Predictor

    def __init__(
        self,
        *,
        hidden_channels: int = 32,
        num_layers: int = 2,
        num_heads: int = 1,
        diffusivity: str | Diffusivity = "simple",
        graph: Any = "auto",
        directed: bool = False,
        neighbours: int = 10,
        graph_weight: float | None = None,
        step_size: float = 0.5,
        source_weight: float = 0.0,
        transform_values: bool = False,
        dropout: float | None = None,
        steps: int = 100,
        learning_rate: float = 0.01,
        weight_decay: float | None = None,
        n_models: int = 3,
        validation_fraction: float | None = None,
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
        self.directed = directed
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
            raise UserError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        x = self._features(x, reset=True)
        if sample_weight is None:
            return x, None
        return x, _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)

    def _features(self, x: Any, *, reset: bool) -> Any:
        """Float64, dense or CSR; names and number of columns are noted, or compared with those noted."""
        if sparse.issparse(x):
            check_scipy(x, "X")
        try:
            checked = validate_data(self, x, reset=reset, accept_sparse="csr", dtype=np.float64, order="C")
        except (ValueError, TypeError) as error:
            if advice := raw_columns(x, type(self).__name__):
                raise UserError(advice, argument="X") from error
            raise
        if sparse.issparse(checked):
            checked = sparse.csr_array(checked, copy=True)
            checked.sum_duplicates()
            checked.eliminate_zeros()
        return checked

    def _fit(
        self,
        X: Any,
        x: Any,
        target: Array,
        num_outputs: int,
        weight: Array | None,
        graph: Any,
        *,
        class_weight: Array | None = None,
        embed: bool = False,
    ) -> Array:
        """Fit a checked table, and return the outputs of its rows, or their states if `embed`.

        table → population (distinct rows with their masses) → scaled features → graph (given, of neighbours, or none)
        → trained models, chosen on held-out labels → models that remember the population.

        `X` is the table as it was given, whose index may identify rows, and `x` its features, float64, dense or CSR;
        `target` holds class numbers ``[N]`` (-1 unknown) or values ``[N, T]`` (NaN unknown).
        """
        for name, rule in OPTIONS.items():
            rule.check(name, getattr(self, name))
        graph = self.graph if graph is None else graph
        given = self._given(graph, X, x)
        recipe = self._recipe(int(has_target(target).sum()), directed=given is not None and self.directed)
        population = make_population(x, target, weight, join=given is None)
        labelled, mass = population.labelled, torch.from_numpy(population.mass) if population.weighted else None
        if not population.mass[labelled].any():
            raise UserError("all labelled rows have sample_weight zero; give at least one of them a positive weight")
        scaling = Scaling.of(population.x, population.mass, standardize=self.standardize)
        output_scale, targets = population.scaled_targets()
        loss_weight = mass
        if class_weight is not None:  # the last is of -1
            loss_weight = torch.from_numpy(population.mass * np.r_[class_weight, 1.0][population.target])
        rows = f"{population.size} distinct rows" if population.size < x.shape[0] else f"{x.shape[0]} rows"
        say(recipe.speaker, f"{rows} of {x.shape[1]} features, {len(labelled)} of them labelled")
        columns = x.nnz / x.shape[0] if sparse.issparse(x) else x.shape[1]
        with threads_for(recipe.numbers(x.shape[0], columns)):
            scaled = scaling(population.x)
            search, nearest, sides = self._sides(graph, given, scaled)
            table = scaled if target.ndim == 2 and not embed else None
            problem = Problem(feature_tensor(scaled), targets, num_outputs, labelled, mass, loss_weight, table)
            del scaled, table  # the problem has it in single precision; a third copy of a large table would count
            trained = train_and_choose(problem, recipe, sides)
            neighbours = trained.graph == "knn"
            fitted = self.fitted_ = Predictor(
                scaling,
                search=search if neighbours else None,
                given=None if given is None else GivenGraph(given, row_digests(x), directed=self.directed),
                softmax=target.ndim == 1,
                temperature=trained.temperature,
                output_scale=output_scale,
                linear=trained.linear,
            )
            parts = list(fitted.parts(population.x, given, nearest if neighbours else None))
            if trained.runs[0].in_batches:
                mass = None  # rows count as they did in training
            states = []
            for run in trained.runs:
                polynomial = recipe.options["backend"] == "polynomial"
                landmarks = self._landmarks(population.size, recipe.seed)
                member, z = remember(run.model, parts, mass, polynomial=polynomial, landmarks=landmarks)
                fitted.members.append(member)
                states.append(z)
            found = torch.cat(states, 1).numpy() if embed else fitted.of_states(parts, states)
            answers: Array = found[np.maximum(population.place, 0)]
            if (absent := population.place < 0).any():  # of weight zero: predicted like new rows
                answers[absent] = fitted.states(x[absent]) if embed else fitted.outputs(x[absent])
        self.graph_ = trained.graph
        self.n_iter_ = max(run.record.epochs for run in trained.runs)
        self.loss_ = float(np.mean([run.record.loss for run in trained.runs]))
        self.validation_loss_ = trained.held_out
        if trained.warning is not None:
            warnings.warn(trained.warning, UserWarning, stacklevel=3)
        return answers

    def _given(self, graph: Any, X: Any, x: Any) -> Any:
        """The user's graph as the CSR matrix of what each row receives; None if there is none."""
        self._known_rows: tuple[RowGraph, Array] | None = None
        if isinstance(graph, str) and graph not in KINDS:
            raise UserError(
                f"graph must be None, 'knn', 'auto', a RowGraph, an adjacency matrix or an edge_index, got {graph!r}",
                argument="graph",
            )
        if graph is None or isinstance(graph, str):
            return None
        if not isinstance(graph, RowGraph):
            return receiving(as_matrix(graph, x.shape[0]), directed=self.directed)
        rows = graph.rows(X, x)
        self._known_rows = graph, rows
        return receiving(graph.matrix[rows][:, rows], directed=self.directed)

    def _sides(
        self, graph: Any, given: Any, scaled: Any
    ) -> tuple[Search | None, Tensor | None, dict[str | None, Edges]]:
        """A search among the population, its rows' own nearest ones ``[n, k]``, and the graphs to choose from."""
        if given is not None:
            coo = given.tocoo()
            edge_index = torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64))
            return None, None, {"given": (edge_index, torch.from_numpy(coo.data.astype(np.float32)))}
        rows = scaled.shape[0]
        if graph is None or (graph == "auto" and not FEWEST_ROWS <= rows <= MOST_ROWS):
            return None, None, {None: NO_EDGES}
        k = min(int(self.neighbours), rows)
        search = SparseRowSearch(scaled, k) if sparse.issparse(scaled) else RowSearch(torch.from_numpy(scaled), k)
        nearest = search(scaled if sparse.issparse(scaled) else torch.from_numpy(scaled))
        receivers = torch.arange(rows).repeat_interleave(k)
        sides: dict[str | None, Edges] = {"knn": (torch.stack([nearest.reshape(-1), receivers]), None)}
        return search, nearest, {**sides, None: NO_EDGES} if graph == "auto" else sides

    def _landmarks(self, rows: int, seed: int) -> Tensor | None:
        """The rows that represent the population where keys are kept; None for all."""
        count = LANDMARKS if self.landmarks is None and rows > FULL_POPULATION else self.landmarks
        if count is None or count >= rows:
            return None
        return torch.from_numpy(np.sort(np.random.RandomState(seed % 2**32).choice(rows, count, replace=False)))

    def _recipe(self, labels: int, *, directed: bool = False) -> Recipe:
        names = ("diffusivity", "step_size", "source_weight", "graph_weight", "dropout", "backend")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        options |= {name: int(getattr(self, name)) for name in ("hidden_channels", "num_layers", "num_heads")}
        options["transform"] = self.transform_values
        if self.dropout is None:
            options["dropout"] = DROPOUT if labels < ENOUGH else 0.0
        if self.diffusivity in ("constant", "identity"):
            options["backend"] = "auto"  # neither has scores for a backend to work out
        if directed:
            options["graph_norm"] = "random_walk"
        return Recipe(
            options=options,
            steps=int(self.steps),
            learning_rate=float(self.learning_rate),
            weight_decay=None if self.weight_decay is None else float(self.weight_decay),
            n_models=int(self.n_models),
            validation_fraction=self.validation_fraction,
            batch_size=self.batch_size,
            device=self.device,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            speaker=type(self).__name__ if self.verbose else None,
        )

    def _asked(self, X: Any, graph: Any) -> tuple[Any, Any]:
        """Rows to predict, checked, and their edges from fitted rows."""
        check_is_fitted(self, "fitted_")
        x = self._features(X, reset=False)
        given = self.fitted_.given
        if graph is None:
            if getattr(self, "_known_rows", None) is None:
                return x, None
            assert self._known_rows is not None
            row_graph, rows = self._known_rows
            return x, row_graph.edges(X, x, rows, directed=self.directed)
        if given is None:
            raise UserError(
                "graph was given for rows to predict, but fit was given none; pass one to fit as well, or leave it out",
                argument="graph",
            )
        return x, as_matrix(graph, x.shape[0], given.degree.numel())

    def _outputs(self, x: Any, graph: Any) -> Array:
        x, edges = self._asked(x, graph)
        return self.fitted_.outputs(x, edges)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes ``estimator.json`` and ``context.safetensors``; see `difformer.estimators.estimator_files`."""
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
        """Writes a program that predicts without this package; see `difformer.estimators.program`."""
        check_is_fitted(self, "fitted_")
        facts = {name: plain_list(getattr(self, name)) for name in TEXTS if hasattr(self, name)}
        export_program(self.fitted_, path, states=hasattr(self, "transform"), facts=facts)


def raw_columns(table: Any, name: str) -> str | None:
    """What to do about the columns of a frame that are texts, dates or categories, or have gaps; None without any."""
    if not hasattr(table, "columns"):
        return None
    others, gaps = [], []
    for column in table.columns:
        try:
            if np.isnan(np.asarray(table[column], dtype=np.float64)).any():
                gaps.append(str(column))
            elif np.asarray(table[column]).dtype.kind == "M":
                others.append(str(column))
        except (TypeError, ValueError):
            others.append(str(column))
    if not others and not gaps:
        return None
    kinds = {"columns that are not numbers": others, "columns with gaps": gaps}
    said = "; ".join(f"{words}: {', '.join(names)}" for words, names in kinds.items() if names)
    steps = f"(OneHotEncoder(handle_unknown='ignore'), {others}), remainder=SimpleImputer()"
    return (
        f"X: {said}. Encode them first: `make_pipeline(make_column_transformer({steps}), {name}())` with scikit-learn, "
        f"or take the features x of difformer.data.from_frame(table, label=...), which reads such tables"
    )
