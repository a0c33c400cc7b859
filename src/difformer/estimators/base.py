"""What all estimators share: options, fitting, and predictions in the context of the fitted population."""

from __future__ import annotations

import warnings
from dataclasses import replace
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
from difformer.estimators.population import Population, Scaling, make_population, row_digests
from difformer.estimators.predictor import GivenGraph, Part, Predictor, Search, remember
from difformer.estimators.problem import NO_EDGES, Edges, Problem, Recipe, Run, say, threads_for
from difformer.estimators.program import export_program
from difformer.estimators.row_graph import KINDS, RowGraph, as_matrix, receiving
from difformer.estimators.row_search import RowSearch, SparseRowSearch
from difformer.estimators.selection import ENOUGH, train_and_choose
from difformer.nn import PretrainedError

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
        """Fit a checked table, and return the outputs of its rows or their states.

        table → population (distinct rows with their masses) → scaled features → graph (given, of neighbours, or none)
        → trained models, chosen on held-out labels → models that remember the population.

        Args:
            X: The table as it was given; frames identify rows by their index.
            x: ``[N, F]`` float64, dense or CSR.
            target: ``[N]`` class numbers (-1 unknown), or ``[N, T]`` values (NaN unknown).
            num_outputs: Classes or targets.
            weight: ``[N]`` non-negative, or None.
            graph: None for the option of this name.
            class_weight: ``[C]``, or None.
            embed: Whether states are returned instead of outputs.
        """
        for name, rule in OPTIONS.items():
            rule.check(name, getattr(self, name))
        recipe = self._recipe((target >= 0 if target.ndim == 1 else ~np.isnan(target).all(1)).sum())
        graph = self.graph if graph is None else graph
        given = self._given(graph, X, x)
        if given is not None and self.directed:
            recipe = replace(recipe, options={**recipe.options, "graph_norm": "random_walk"})
        population = make_population(x, target, weight, join=given is None)
        if not len(population.labelled) or not population.mass[population.labelled].any():
            raise UserError("all labelled rows have sample_weight zero; give at least one of them a positive weight")
        scaling = Scaling.of(population.x, population.mass, standardize=self.standardize)
        output_scale, targets = _scaled_targets(population)
        rows = f"{population.size} distinct rows" if population.size < x.shape[0] else f"{x.shape[0]} rows"
        say(recipe.speaker, f"{rows} of {x.shape[1]} features, {len(population.labelled)} of them labelled")
        columns = x.nnz / x.shape[0] if sparse.issparse(x) else x.shape[1]
        with threads_for(recipe.numbers(x.shape[0], columns)):
            scaled = scaling(population.x)
            search, nearest = self._search(graph, given, scaled)
            problem = Problem(
                x=feature_tensor(scaled),
                y=targets,
                num_outputs=num_outputs,
                labelled=population.labelled,
                mass=torch.from_numpy(population.mass) if population.weighted else None,
                weight=_loss_weight(population, class_weight),
                table=scaled if target.ndim == 2 and not embed else None,
            )
            del scaled  # the problem has it in single precision; a third copy of a large table would count
            trained = train_and_choose(problem, recipe, self._sides(graph, given, nearest))
            self.fitted_ = Predictor(
                scaling,
                search=search if trained.graph == "knn" else None,
                given=None if given is None else GivenGraph(given, row_digests(x), directed=self.directed),
                softmax=target.ndim == 1,
                temperature=trained.temperature,
                output_scale=output_scale,
                linear=trained.linear,
            )
            parts = list(self.fitted_.parts(population.x, given, nearest if trained.graph == "knn" else None))
            states = self._remember(trained.runs, parts, population, recipe)
            rows_of_table = _of_table(self.fitted_, population.place, x, parts, states, embed)
        records = [run.record for run in trained.runs]
        self.graph_ = trained.graph
        self.n_iter_ = max(record.epochs for record in records)
        self.loss_ = float(np.mean([record.loss for record in records]))
        self.validation_loss_ = trained.held_out
        if trained.warning is not None:
            warnings.warn(trained.warning, UserWarning, stacklevel=3)
        return rows_of_table

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
        if isinstance(graph, RowGraph):
            rows = graph.rows(X, x)
            self._known_rows = graph, rows
            matrix = graph.matrix[rows][:, rows]
        else:
            matrix = as_matrix(graph, x.shape[0])
        return receiving(matrix, directed=self.directed)

    def _search(self, graph: Any, given: Any, scaled: Any) -> tuple[Search | None, Tensor | None]:
        """A search among the rows of the population and their own nearest ones ``[n, k]``, if they may be wanted."""
        rows = scaled.shape[0]
        if given is not None or graph is None or (graph == "auto" and not FEWEST_ROWS <= rows <= MOST_ROWS):
            return None, None
        k = min(int(self.neighbours), rows)
        if sparse.issparse(scaled):
            sparse_search = SparseRowSearch(scaled, k)
            return sparse_search, sparse_search(scaled)
        points = torch.from_numpy(scaled)
        search = RowSearch(points, k)
        return search, search(points)

    def _sides(self, graph: Any, given: Any, nearest: Tensor | None) -> dict[str | None, Edges]:
        """The graphs to choose from, by name."""
        if given is not None:
            coo = given.tocoo()
            edge_index = torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64))
            return {"given": (edge_index, torch.from_numpy(coo.data.astype(np.float32)))}
        sides: dict[str | None, Edges] = {}
        if nearest is not None:
            receivers = torch.arange(nearest.shape[0]).repeat_interleave(nearest.shape[1])
            sides["knn"] = (torch.stack([nearest.reshape(-1), receivers]), None)
        if nearest is None or graph == "auto":
            sides[None] = NO_EDGES
        return sides

    def _remember(self, runs: list[Run], parts: list[Part], population: Population, recipe: Recipe) -> list[Tensor]:
        """Puts models into the context of the population; returns its final states, one tensor per model."""
        alike = not population.weighted or runs[0].in_batches  # rows count as they did in training
        mass, landmarks = None if alike else torch.from_numpy(population.mass), self.landmarks
        if landmarks is None and population.size > FULL_POPULATION:
            landmarks = LANDMARKS
        chosen = None
        if landmarks is not None and landmarks < population.size:
            rng = np.random.RandomState(recipe.seed % 2**32)
            chosen = torch.from_numpy(np.sort(rng.choice(population.size, landmarks, replace=False)))
        states = []
        for run in runs:
            polynomial = recipe.options.get("backend") == "polynomial"
            member, z = remember(run.model, parts, mass, polynomial=polynomial, landmarks=chosen)
            self.fitted_.members.append(member)
            states.append(z)
        return states

    def _recipe(self, labels: int) -> Recipe:
        options = {
            name: getattr(self, name)
            for name in ("diffusivity", "step_size", "source_weight", "graph_weight", "dropout", "backend")
        }
        if options["dropout"] is None:
            options["dropout"] = DROPOUT if labels < ENOUGH else 0.0
        if options["diffusivity"] in ("constant", "identity"):
            options["backend"] = "auto"  # neither has scores for a backend to work out
        counts = {name: int(getattr(self, name)) for name in ("hidden_channels", "num_layers", "num_heads")}
        return Recipe(
            options={**counts, **options, "transform": self.transform_values},
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


def _scaled_targets(population: Population) -> tuple[Tensor | None, Tensor]:
    """Mean and deviation ``[2, T]`` of values, and the values scaled by them; classes stay as they are."""
    if population.target.ndim == 1:
        return None, torch.from_numpy(population.target)
    known = ~np.isnan(population.target)
    mass = population.mass[:, None] * known
    total = np.maximum(mass.sum(0), np.finfo(np.float64).tiny)
    filled = np.where(known, population.target, 0.0)
    mean = (mass * filled).sum(0) / total
    deviation = np.sqrt((mass * (filled - mean) ** 2).sum(0) / total)
    deviation = np.where(deviation > 0, deviation, 1.0)
    targets = ((population.target - mean) / deviation).astype(np.float32)
    return torch.from_numpy(np.stack([mean, deviation])), torch.from_numpy(targets)


def _loss_weight(population: Population, class_weight: Array | None) -> Tensor | None:
    """Mass times the weight of the class; None if all rows count equally."""
    if class_weight is None:
        return torch.from_numpy(population.mass) if population.weighted else None
    return torch.from_numpy(population.mass * np.r_[class_weight, 1.0][population.target])  # the last is of -1


def _of_table(fitted: Predictor, place: Array, x: Any, parts: list[Part], states: list[Tensor], embed: bool) -> Array:
    """States or outputs of the table's rows; those of weight zero are predicted like new ones."""
    with torch.no_grad():
        if embed:
            found = torch.cat(states, 1).numpy()
        else:
            sizes = [part[0].shape[0] for part in parts]
            each = zip(*(z.split(sizes) for z in states), strict=True)
            answers = [fitted.combine(list(z), part[0]) for z, part in zip(each, parts, strict=True)]
            found = torch.cat(answers).numpy()
    rows: Array = found[np.maximum(place, 0)]
    absent = place < 0
    if absent.any():
        rows[absent] = fitted.states(x[absent]) if embed else fitted.outputs(x[absent])
    return rows


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
