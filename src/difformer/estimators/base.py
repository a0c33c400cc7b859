"""The estimators: options, fitting, and predictions in the context of the fitted population."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.base import ClassNamePrefixFeaturesOutMixin as NamedFeatures
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from difformer.data.own.preprocessing import Preprocessing
from difformer.data.own.table import frame_table
from difformer.data.sparse_features import feature_tensor
from difformer.data.split import labelled as labelled_rows
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError, or_near
from difformer.estimators.estimator_files import export_program, load_estimator, save_estimator
from difformer.estimators.labels import class_labels, has_classes, known_labels, values
from difformer.estimators.population import Array, RowScaling, make_population, row_digests
from difformer.estimators.predictor import Predictor, remember, threads_for
from difformer.estimators.recipe import Recipe
from difformer.estimators.row_graph import GivenGraph, RowGraph, RowSearch, as_matrix, edges_of, receiving
from difformer.estimators.selection import NO_EDGES, EdgeList, Side, TableProblem, train_and_choose
from difformer.sparse import check_scipy

if TYPE_CHECKING:
    from typing_extensions import Self

FEWEST_ROWS, MOST_ROWS = 32, 10_000  # between which graph="auto" considers the neighbour graph


class DIFFormerEstimator(BaseEstimator):
    """Options and fitting of `DIFFormerClassifier`, `DIFFormerRegressor` and `DIFFormerTransformer`.

    Args:
        hidden_channels: Length of a state.
        num_layers: Diffusion steps.
        num_heads: Heads, averaged.
        diffusivity: ``"simple"`` costs time linear in the number of rows, and O(d²) per layer for a new row; others
            (``"sigmoid"``, ``"gaussian:0.5"``, a `Diffusivity`) compare pairs. None switches attention off, so that
            only the edges of a graph remain.
        graph: Observed structure if `fit` is given none: None for latent structure only, ``"knn"`` for an edge from
            each row's nearest rows to it, ``"auto"`` for whichever of the two predicts held-out labelled rows better,
            edges among the rows of the table to fit, or a `RowGraph`, which follows rows into folds.
        directed: Whether edges that you give have a direction. By default an edge goes both ways.
        neighbours: Nearest rows in the neighbour graph, the row itself included.
        graph_weight: None adds the graph term to the latent one; w in [0, 1] mixes them.
        step_size: τ in (0, 1].
        source_weight: β, weight of the initial states in every step.
        transform_values: Whether each layer has its own linear map for the values it propagates.
        dropout: Of states, while training; None is 0.2 with fewer than 500 labelled rows, and 0 with more.
        steps: Maximum number of gradient steps per model; three times as many where a share of the labels is held out.
        learning_rate: Of Adam.
        weight_decay: λ of ½λ‖w‖²; None is 1 / (labelled rows), as in `LogisticRegression`, but at most 0.02.
        n_models: Number of models, with different initial weights, whose outputs are averaged.
        validation_fraction: Share of the labelled rows that is held out to choose epoch, graph and temperature; 0 holds
            out none. None is 0.1 if at least 500 rows are labelled; with fewer, cross-validation chooses, and all
            labelled rows are trained on.
        batch_size: Rows per mini-batch; None takes the whole population at once, or mini-batches of large tables.
        landmarks: How many rows represent the population when new rows are predicted, where pairs are compared; None
            keeps all of up to 10,000, and 4,096 of more.
        standardize: Whether dense columns are centred and brought to a common scale; beside numbers, indicators
            (columns of 0 and 1) stay as they are. See `difformer.estimators.population`.
        backend: Operator for all pairs while training, see `difformer.attention.propagate`.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``; predictions are made on the CPU.
        random_state: Seed, generator, or None for a new one each time.
        verbose: Whether lines about the progress of `fit` are printed.

    Attributes:
        transduction_: Predictions for the rows that were fitted.
        graph_: ``"knn"``, ``"given"`` or None: what was used.
        n_features_in_, feature_names_in_: Columns that were fitted.
        n_iter_: Epochs of the longest run.
        loss_: Last training loss, mean over models.
        validation_loss_: Log loss, or squared error of scaled targets, on held-out labelled rows; None if there were
            too few labels to hold any out.
    """

    fitted_: Predictor
    _known_rows: tuple[RowGraph, Array] | None = None

    def __init__(
        self,
        *,
        hidden_channels: int = 32,
        num_layers: int = 2,
        num_heads: int = 1,
        diffusivity: str | Diffusivity | None = "simple",
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
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise TypeError(f"{type(self).__name__} has no option {name!r}{or_near(name, self._get_param_names())}")
        self.__dict__.update({name: value for name, value in locals().items() if name not in ("self", "unknown")})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the options above

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.target_tags.required = True
        tags.target_tags.multi_output = isinstance(self, RegressorMixin)
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, graph: Any = None) -> Self:
        """Train on the labelled rows, in the context of all rows.

        Args:
            X: ``[N, F]`` features: array, frame, or scipy sparse matrix.
            y: ``[N]`` labels, -1, NaN or None where a row is unlabelled; or ``[N]`` or ``[N, T]`` values, NaN where
                unknown.
            sample_weight: ``[N]``: a row of weight 2 counts as two equal rows, one of weight 0 as none.
            graph: Overrides the option of this name: ``"knn"``, ``"auto"``, or edges among the rows, see
                `difformer.estimators.row_graph`.

        Raises:
            ValueError: As scikit-learn's estimators do; and if `graph` has the wrong size.
        """
        self._keep(self._fit(X, y, sample_weight, graph))
        return self

    def _features(self, x: Any, *, reset: bool) -> Any:
        """Float64, dense or CSR; names and number of columns are stored (`reset`) or compared with those of `fit`."""
        if sparse.issparse(x):
            check_scipy(x, "X")
        try:
            checked = validate_data(self, x, reset=reset, accept_sparse="csr", dtype=np.float64, order="C")
        except (ValueError, TypeError) as error:
            names = list(getattr(x, "columns", ()))  # if not the fitted ones, the error says which are missing
            fitted = reset or names == list(getattr(self, "feature_names_in_", names))
            if fitted and (advice := raw_columns(x, type(self).__name__)):
                raise UserError(advice, argument="X") from error
            raise
        if sparse.issparse(checked):
            checked = sparse.csr_array(checked, copy=True)
            checked.sum_duplicates()
            checked.eliminate_zeros()
        return checked

    def _targets(self, y: Any, x: Any, weight: Array | None) -> tuple[Array, Array | None]:
        """Class numbers ``[N]`` (-1 unknown) or values ``[N, T]`` (NaN unknown), and weights of the classes."""
        raise NotImplementedError

    def _fit(self, X: Any, y: Any, sample_weight: Any, graph: Any) -> Array:
        """Fit a table, and return the predictor's answers to its rows.

        table → population (distinct rows with their masses) → scaled features → graph (given, of neighbours, or none)
        → trained models, chosen on held-out labels → models that remember the population.
        """
        if y is None:
            raise UserError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        x, weight = self._features(X, reset=True), None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        target, class_weight = self._targets(y, x, weight)
        graph = self.graph if graph is None else graph
        given = self._given(graph, X, x)
        recipe = Recipe(self, len(labelled_rows(target)), directed=given is not None and self.directed)
        population = make_population(x, target, weight, join=given is None)
        labelled, size = labelled_rows(population.target).numpy(), len(population.mass)
        if not population.mass[labelled].any():
            raise UserError("all labelled rows have sample_weight zero; give at least one of them a positive weight")
        output_scale, targets = population.scaled_targets()
        weighted = bool((population.mass != population.mass[0]).any())
        mass = loss_weight = torch.from_numpy(population.mass) if weighted else None
        if class_weight is not None:  # the last is of -1
            loss_weight = torch.from_numpy(population.mass * np.r_[class_weight, 1.0][population.target])
        distinct = f"{size} distinct" if size < x.shape[0] else size
        recipe.say(f"{distinct} rows of {x.shape[1]} features, {len(labelled)} of them labelled")
        columns = x.nnz / x.shape[0] if sparse.issparse(x) else x.shape[1]
        with threads_for(recipe.numbers(x.shape[0], columns)):
            scaling = RowScaling.of(population.x, population.mass, standardize=self.standardize)
            scaled, embed = scaling(population.x), isinstance(self, TransformerMixin)
            search, nearest, sides = self._sides(graph, given, scaled)
            table = scaled if target.ndim == 2 and not embed else None
            problem = TableProblem(feature_tensor(scaled), targets, labelled, mass, loss_weight, table)
            del scaled, table  # the problem has it in single precision; avoids a third copy of a large table
            runs, side, judged = train_and_choose(problem, recipe, sides)
            # What predictions need: numbers, the graph, and each model's memory of the population.
            temperature = torch.tensor(judged.temperature, dtype=torch.float64)
            numbers = scaling.tensors() | {"temperature": temperature, "output_scale": output_scale}
            if runs[0].linear is not None:  # all models have the same
                numbers |= vars(runs[0].linear) | ({} if judged.share is None else {"share": judged.share})
            kept = None if given is None else GivenGraph(given, row_digests(x), directed=self.directed)
            fitted = self.fitted_ = Predictor(numbers, search if side == "knn" else None, kept, embed=embed)
            parts, landmarks = list(fitted.parts(population.x, given, nearest)), recipe.landmarks(size)
            for run in runs:  # rows count as they did in training
                fitted.members.append(remember(run.model, parts, None if run.in_batches else mass, landmarks))
            with torch.no_grad():
                answers: Array = torch.cat([fitted(*part) for part in parts]).numpy()[np.maximum(population.place, 0)]
            if (absent := population.place < 0).any():  # of weight zero: predicted like new rows
                answers[absent] = fitted.predict(x[absent])
        self.graph_ = side
        self.n_iter_ = max(run.record.epochs for run in runs)
        self.loss_ = float(np.mean([run.record.loss for run in runs]))
        self.validation_loss_ = judged.loss
        if judged.warning:
            warnings.warn(judged.warning, UserWarning, stacklevel=3)
        return answers

    def _keep(self, answers: Array) -> None:
        """Store the answers to the fitted rows."""

    def _given(self, graph: Any, X: Any, x: Any) -> Any:
        """The user's graph as the CSR matrix of what each row receives; None without a graph."""
        self._known_rows = None
        if isinstance(graph, RowGraph):
            self._known_rows = graph, graph.fitted_rows(X, x)
            rows = self._known_rows[1]
            return receiving(graph.matrix[rows][:, rows], directed=self.directed)
        if isinstance(graph, str) and graph not in ("knn", "auto"):
            forms = "None, 'knn', 'auto', a RowGraph, an adjacency matrix or an edge_index"
            raise UserError(f"graph must be {forms}, got {graph!r}", argument="graph")
        if graph is None or isinstance(graph, str):
            return None
        return receiving(as_matrix(graph, x.shape[0]), directed=self.directed)

    def _sides(
        self, graph: Any, given: Any, scaled: Any
    ) -> tuple[RowSearch | None, Tensor | None, dict[Side, EdgeList]]:
        """A search among the population, its rows' own nearest ones ``[n, k]``, and the graphs to choose from."""
        if given is not None:
            coo = given.tocoo()
            edge_index = torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64))
            return None, None, {"given": (edge_index, torch.from_numpy(coo.data.astype(np.float32)))}
        rows = scaled.shape[0]
        if graph is None or (graph == "auto" and not FEWEST_ROWS <= rows <= MOST_ROWS):
            return None, None, {None: NO_EDGES}
        k = min(int(self.neighbours), rows)
        search = RowSearch(scaled, k)
        nearest = search(scaled)
        edge_index = torch.stack([nearest.reshape(-1), torch.arange(rows).repeat_interleave(k)])
        return search, nearest, {"knn": (edge_index, None)} | ({None: NO_EDGES} if graph == "auto" else {})

    def _predicted(self, X: Any, graph: Any) -> Array:
        """The predictor's answers to rows, with their edges from fitted rows."""
        check_is_fitted(self, "fitted_")
        x, edges, given = self._features(X, reset=False), None, self.fitted_.given
        if graph is not None:
            if given is None:
                problem = "graph was given for rows to predict, but fit was given none"
                raise UserError(f"{problem}; pass one to fit, or leave it out", argument="graph")
            edges = as_matrix(graph, x.shape[0], given.shape[0])
        elif given is not None and self._known_rows is not None:
            known, rows = self._known_rows
            edges = edges_of(receiving(known.matrix, directed=given.directed)[:, rows], known.rows(X, x))
        return self.fitted_.predict(x, edges)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``estimator.json`` and ``context.safetensors``; see `difformer.estimators.estimator_files`."""
        check_is_fitted(self, "fitted_")
        save_estimator(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, diffusivity: Diffusivity | None = None) -> Self:
        """Load what `save_pretrained` wrote. Nothing in the files is executed; pass a custom diffusivity again.

        Raises:
            FileNotFoundError: If a file is missing.
            PretrainedError: If a file is damaged, of another program, or of another version of the format.
        """
        found: Self = load_estimator(folder, cls, diffusivity)
        return found

    def export(self, path: str | Path) -> None:
        """Write a program that predicts without this package; see `difformer.estimators.estimator_files`."""
        check_is_fitted(self, "fitted_")
        export_program(self, path)


def raw_columns(x: Any, name: str) -> str:
    """What to do about the columns of a frame that are texts, dates or categories, or have gaps; empty without any."""
    try:
        table = frame_table(x)
        table.read([i for i, text in enumerate(table.textual) if text], gaps=True)
        columns = Preprocessing.fit([(column, table.cells[i]) for i, column in enumerate(table.names)]).columns
    except (AttributeError, UserError):  # no frame, or one whose columns cannot be told apart
        return ""
    kinds: dict[str, list[str]] = {"date": [], "left out": [], "": [], "gaps": []}
    for column, textual in zip(columns, table.textual, strict=True):
        if textual or column.gaps:
            kinds["gaps" if not textual else column.kind if column.kind in kinds else ""].append(column.name)
    words = ("dates", "ids, free text or constants", "categories", "columns with gaps")
    said = "; ".join(f"{what}: {', '.join(found)}" for what, found in zip(words, kinds.values(), strict=True) if found)
    dropped, encoded = [*kinds["left out"], *kinds["date"]], kinds[""]
    steps = [f"('drop', {dropped})"] * bool(dropped)
    steps += [f"(OneHotEncoder(handle_unknown='ignore'), {encoded})"] * bool(encoded)
    first = f"make_column_transformer({', '.join(steps)}, remainder=SimpleImputer())" if steps else "SimpleImputer()"
    way = "difformer.data.from_frame(table, label=...) encodes such tables: pass its x. With scikit-learn, use"
    rule = ", which drops columns that differ in nearly every row, and dates unless you make numbers of them"
    return said and f"X: holds {said}. {way} `make_pipeline({first}, {name}())`{rule if dropped else ''}"


class DIFFormerClassifier(ClassifierMixin, DIFFormerEstimator):
    """Semi-supervised classification: labels travel over latent structure and, if there is one, over a graph.

    Args:
        class_weight: ``"balanced"`` weights classes by the inverse of their frequency among the labels, a dictionary
            gives the weight of each label, None weights all equally; as in scikit-learn. It acts in the loss.
        **options: See `DIFFormerEstimator`, also for more attributes.

    Attributes:
        classes_: Labels in order.
        label_distributions_: ``[N, C]`` probabilities of the rows that were fitted.
        transduction_: ``[N]`` their most probable labels.
        temperature_: What logits are divided by before they become probabilities.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> partly = y.copy()
        >>> partly[np.arange(150) % 10 > 0] = -1
        >>> model = DIFFormerClassifier(random_state=0).fit(X, partly)
        >>> model.transduction_.shape
        (150,)
    """

    classes_: Array

    def __init__(self, *, class_weight: Mapping[Any, float] | str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.class_weight = class_weight

    def _targets(self, y: Any, x: Any, weight: Array | None) -> tuple[Array, Array | None]:
        self.classes_, target = class_labels(y, x, type(self).__name__, weight)
        if self.class_weight is None:
            return target, None
        known = self.classes_[target[target >= 0]]
        return target, compute_class_weight(self.class_weight, classes=self.classes_, y=known)

    def _keep(self, answers: Array) -> None:
        self.label_distributions_, self.temperature_ = answers, float(self.fitted_.temperature)
        self.transduction_ = self.classes_[answers.argmax(1)]

    def predict_proba(self, X: Any, *, graph: Any = None) -> Array:
        """``[M, C]`` probabilities of rows, each in the context of the fitted population only.

        Args:
            X: ``[M, F]`` features.
            graph: Where a graph was given to `fit`: edges from fitted rows to these, a sparse matrix ``[M, N]`` or an
                ``edge_index [2, E]`` with fitted rows above. Left out, fitted rows are recognised and keep their edges;
                others have none.
        """
        return self._predicted(X, graph)

    def predict(self, X: Any, *, graph: Any = None) -> Array:
        """``[M]`` most probable labels; see `predict_proba`."""
        probable = self.predict_proba(X, graph=graph).argmax(1)  # first: it says so if nothing was fitted
        return self.classes_[probable]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, graph: Any = None) -> float:
        """Accuracy on the labelled rows; those marked as unlabelled are neither right nor wrong.

        Arguments as in `fit` and `predict_proba`.

        Raises:
            ValueError: If no row is labelled.
        """
        predicted = self.predict(X, graph=graph)
        known, labels = known_labels(y, self.classes_, type(self).__name__)
        check_consistent_length(predicted, known, sample_weight)
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(labels, predicted[known], sample_weight=weight))


# scikit-learn, and `help`, read the options off the signature; the last is `**unknown`.
_makers: list[Any] = [DIFFormerEstimator.__init__, DIFFormerClassifier.__init__]
_options = [*inspect.signature(_makers[0]).parameters.values()][:-1]
_makers[0].__signature__ = inspect.Signature(_options)
_weight = inspect.signature(_makers[1]).parameters["class_weight"]
_makers[1].__signature__ = inspect.Signature([*_options, _weight])


class DIFFormerRegressor(RegressorMixin, DIFFormerEstimator):
    """Semi-supervised regression, of one target or several; NaN marks what is unknown.

    A prediction is the sum of a ridge regression and of what the models add to it, see
    `difformer.estimators.selection`.

    Args:
        See `DIFFormerEstimator`, also for more attributes.

    Attributes:
        transduction_: ``[N]`` or ``[N, T]`` values of the rows that were fitted.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> y[::2] = float("nan")
        >>> DIFFormerRegressor(random_state=0).fit(X, y).transduction_.shape
        (442,)
    """

    def _targets(self, y: Any, x: Any, weight: Array | None) -> tuple[Array, Array | None]:
        target = values(y, x, type(self).__name__)
        self.one_column_ = target.ndim == 1
        return target.reshape(len(target), -1), None

    def _keep(self, answers: Array) -> None:
        self.transduction_ = answers[:, 0] if self.one_column_ else answers

    def predict(self, X: Any, *, graph: Any = None) -> Array:
        """``[M]`` or ``[M, T]`` values of rows ``X [M, F]``; `graph` as in `DIFFormerClassifier.predict_proba`."""
        outputs = self._predicted(X, graph)
        return outputs[:, 0] if self.one_column_ else outputs

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, graph: Any = None) -> float:
        """R² on the labelled rows; with several targets the mean over targets, each on the rows where it is known.

        Arguments as in `fit` and `DIFFormerClassifier.predict_proba`.
        """
        predicted = self.predict(X, graph=graph)
        wanted = values(y, predicted, type(self).__name__).reshape(len(predicted), -1)
        weight = np.ones(len(predicted)) if sample_weight is None else np.asarray(sample_weight)
        columns = zip(predicted.reshape(wanted.shape).T, wanted.T, ~np.isnan(wanted.T), strict=True)
        return float(np.mean([r2_score(y[i], value[i], sample_weight=weight[i]) for value, y, i in columns]))


class DIFFormerTransformer(NamedFeatures, TransformerMixin, DIFFormerEstimator):
    """Features diffused over the population: supervised embeddings for the next step of a pipeline.

    An embedding is the state behind the output layer. Targets are classes or values; which of the two is inferred from
    `y`, as scikit-learn does (``sklearn.utils.multiclass.type_of_target``).

    Args:
        See `DIFFormerEstimator`; the embeddings of `n_models` models are concatenated.

    Example:
        >>> from sklearn.datasets import load_wine
        >>> X, y = load_wine(return_X_y=True)
        >>> DIFFormerTransformer(hidden_channels=16, random_state=0).fit_transform(X, y).shape
        (178, 48)
    """

    def _targets(self, y: Any, x: Any, weight: Array | None) -> tuple[Array, Array | None]:
        if has_classes(y):
            return class_labels(y, x, type(self).__name__, weight)[1], None
        return values(y, x, type(self).__name__).reshape(x.shape[0], -1), None

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None, *, graph: Any = None) -> Array:
        """Fit, and return the embeddings of the fitted rows."""
        return self._fit(X, y, sample_weight, graph)

    def transform(self, X: Any, *, graph: Any = None) -> Array:
        """``[M, n_models · hidden_channels]`` states of rows; arguments as in `DIFFormerClassifier.predict_proba`."""
        return self._predicted(X, graph)

    @property
    def _n_features_out(self) -> int:
        return len(self.fitted_.members) * self.fitted_.channels
