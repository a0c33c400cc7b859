import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from difformer.training.early_stopping import improves
from difformer.training.losses import problem_loss
from difformer.training.metrics import METRICS, find_metric

SEEDS = range(8)


def problem(seed, n=200, classes=5, ties=False):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(n, classes, generator=generator)
    if ties:
        outputs = (outputs * 2).round() / 2
    return outputs, torch.randint(classes, (n,), generator=generator)


def labels_with_gaps(seed, n=150, columns=6):
    generator = torch.Generator().manual_seed(100 + seed)
    targets = (torch.rand(n, columns, generator=generator) < 0.3).float()
    targets[torch.rand(n, columns, generator=generator) < 0.2] = torch.nan
    targets[:, 2] = 0  # a column without positives is left out of the mean
    return targets


@pytest.mark.parametrize("seed", SEEDS)
def test_accuracy_and_f1_of_classes(seed):
    # A class that is neither predicted nor there counts for nothing in the macro average.
    outputs, targets = problem(seed, n=40, classes=9)
    outputs[:, 7] -= 100
    targets[targets == 7] = 0
    predicted = outputs.argmax(1)
    assert METRICS["accuracy"](outputs, targets).item() == pytest.approx(sk.accuracy_score(targets, predicted))
    assert METRICS["f1"](outputs, targets).item() == pytest.approx(sk.f1_score(targets, predicted, average="macro"))
    assert METRICS["f1-micro"](outputs, targets).item() == pytest.approx(
        sk.f1_score(targets, predicted, average="micro")
    )


def test_unlabelled_instances_count_for_nothing():
    outputs, targets = problem(0)
    targets[::3] = -1
    known = targets >= 0
    for name in ("accuracy", "rocauc", "f1", "f1-micro"):
        torch.testing.assert_close(METRICS[name](outputs, targets), METRICS[name](outputs[known], targets[known]))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_rocauc_of_two_classes(seed, ties):
    outputs, targets = problem(seed, classes=2, ties=ties)
    expected = sk.roc_auc_score(targets, (outputs[:, 1] - outputs[:, 0]).numpy())
    assert METRICS["rocauc"](outputs, targets).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_rocauc_of_many_columns_is_that_of_the_ogb_evaluator(seed, ties):
    targets = labels_with_gaps(seed)
    outputs, _ = problem(seed, n=150, classes=6, ties=ties)
    each = []
    for column in range(6):
        known = ~targets[:, column].isnan()
        if targets[known, column].unique().numel() == 2:
            each.append(sk.roc_auc_score(targets[known, column], outputs[known, column]))
    assert len(each) == 5
    assert METRICS["rocauc"](outputs, targets).item() == pytest.approx(np.mean(each), abs=1e-12)


def test_rocauc_in_slices_of_columns(monkeypatch):
    targets = labels_with_gaps(0)
    outputs, _ = problem(0, n=150, classes=6)
    whole = METRICS["rocauc"](outputs, targets)
    monkeypatch.setattr("difformer.training.metrics.ENTRIES_AT_ONCE", 300)
    torch.testing.assert_close(METRICS["rocauc"](outputs, targets), whole)


@pytest.mark.parametrize("seed", SEEDS)
def test_rocauc_of_many_classes(seed):
    outputs, targets = problem(seed)
    expected = sk.roc_auc_score(targets, outputs.softmax(1).double().numpy(), multi_class="ovr")
    # Probabilities in single precision tie where those in double precision do not.
    assert METRICS["rocauc"](outputs, targets).item() == pytest.approx(expected, abs=1e-4)


def test_rocauc_of_one_column_of_graphs():
    outputs, targets = torch.tensor([[0.1], [0.2], [0.2], [0.9]]), torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    assert METRICS["rocauc"](outputs, targets).item() == pytest.approx(3.5 / 4)
    assert METRICS["rocauc"](outputs, torch.ones(4, 1)).isnan()


@pytest.mark.parametrize("seed", SEEDS)
def test_f1_of_many_columns(seed):
    targets = labels_with_gaps(seed).nan_to_num(0)
    outputs, _ = problem(seed, n=150, classes=6)
    for name, average in (("f1", "macro"), ("f1-micro", "micro")):
        expected = sk.f1_score(targets, outputs > 0, average=average, zero_division=0)
        assert METRICS[name](outputs, targets).item() == pytest.approx(expected)
    assert METRICS["accuracy"](outputs, targets).item() == pytest.approx(((outputs > 0) == targets).float().mean())


@pytest.mark.parametrize("seed", SEEDS)
def test_errors_of_regression(seed):
    outputs, _ = problem(seed, classes=1)
    targets = torch.randn(200)
    targets[::7] = torch.nan
    known = ~targets.isnan()
    assert METRICS["mse"](outputs, targets).item() == pytest.approx(
        sk.mean_squared_error(targets[known], outputs[known, 0]), rel=1e-5
    )
    assert METRICS["mae"](outputs, targets).item() == pytest.approx(
        sk.mean_absolute_error(targets[known], outputs[known, 0]), rel=1e-5
    )


def test_broadcast_mse_is_the_matrix_of_the_public_code():
    outputs, targets = torch.randn(5, 20, 1), torch.randn(5, 20)
    literal = torch.stack([((o - y) ** 2).mean() for o, y in zip(outputs, targets, strict=True)]).mean()
    torch.testing.assert_close(METRICS["broadcast-mse"](outputs, targets), literal)
    perfect = targets.unsqueeze(-1)
    assert METRICS["mse"](perfect, targets) == 0
    torch.testing.assert_close(METRICS["broadcast-mse"](perfect, targets), 2 * targets.var(-1, correction=0).mean())


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"\(20, 3\) and targets \(20,\)"):
        METRICS["mse"](torch.randn(20, 3), torch.randn(20))


def test_unknown_and_unfitting_metrics_are_named():
    with pytest.raises(ValueError, match="did you mean accuracy"):
        find_metric("acuracy")
    with pytest.raises(ValueError, match="'mse' cannot measure a multiclass task; use one of accuracy, rocauc"):
        find_metric("mse", "multiclass")


def test_which_of_two_values_is_better():
    nan = float("nan")
    assert improves(0.5, nan, higher_is_better=True)
    assert not improves(0.5, 0.5, higher_is_better=True)  # the first best wins
    assert improves(0.4, 0.5, higher_is_better=False)
    assert not improves(nan, nan, higher_is_better=False)


@pytest.mark.parametrize("name", ["accuracy", "rocauc", "f1", "f1-micro"])
def test_outputs_that_are_not_numbers_score_nothing(name):
    outputs, targets = problem(0, classes=2)
    assert METRICS[name](outputs, targets).isfinite()
    outputs[3, 1] = torch.nan
    assert METRICS[name](outputs, targets).isnan()


def test_validation_targets_that_measure_nothing_are_refused():
    _, targets = problem(0, classes=2)
    METRICS["rocauc"].check(targets, 2)
    METRICS["rocauc"].check(targets[:0], 2)
    METRICS["accuracy"].check(torch.zeros_like(targets), 2)
    with pytest.raises(ValueError, match=r"'rocauc' is not defined on the validation part \(200 instances\)"):
        METRICS["rocauc"].check(torch.zeros_like(targets), 2)
    METRICS["mse"].check(torch.tensor([[1.0, torch.nan]]), 1)
    with pytest.raises(ValueError, match="targets are missing"):
        METRICS["broadcast-mse"].check(torch.tensor([[1.0, torch.nan]]), 1)


@pytest.mark.parametrize("name", sorted(METRICS))
def test_counts_of_parts_add_up_to_those_of_all(name):
    metric = METRICS[name]
    generator = torch.Generator().manual_seed(0)
    kinds = {"multiclass": torch.randint(-1, 3, (8, 30), generator=generator)}
    kinds["multilabel"] = torch.randint(0, 2, (8, 30, 3), generator=generator).float()
    kinds["regression"] = torch.randn(8, 30, generator=generator)
    for problem in metric.problems:
        targets = kinds[problem]
        outputs = torch.randn(8, 30, 1 if problem == "regression" else 3, generator=generator)
        whole = metric(outputs, targets)
        assert whole.isfinite()
        if metric.adds:
            parts = [metric.counts(outputs[rows], targets[rows]) for rows in (slice(0, 3), slice(3, 8))]
            torch.testing.assert_close(metric.finish(parts[0] + parts[1]), whole)


@pytest.mark.parametrize("problem", ["multiclass", "multilabel", "regression"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_is_a_sum_over_a_mass_and_both_add_up(problem, weighted):
    from torch.nn import functional

    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(20, 3, generator=generator)
    weights = torch.tensor([1.0, 2.0, 0.5]) if weighted and problem != "regression" else None
    if problem == "multiclass":
        targets = torch.randint(-1, 3, (20,), generator=generator)
        expected = functional.cross_entropy(outputs, targets, weight=weights, ignore_index=-1, label_smoothing=0.1)
    else:
        targets = torch.randint(0, 2, (20, 3), generator=generator).float()
        wanted = targets * 0.9 + 0.05
        expected = functional.binary_cross_entropy_with_logits(outputs, wanted, pos_weight=weights)
        if problem == "regression":
            expected = functional.mse_loss(outputs, targets)
    loss = problem_loss(problem, 0.1, weights)
    torch.testing.assert_close(loss(outputs, targets), expected)
    rows = (slice(0, 7), slice(7, 20))
    total = sum(loss.total(outputs[part], targets[part]) for part in rows)
    torch.testing.assert_close(total / sum(loss.mass(targets[part]) for part in rows), expected)


@pytest.mark.parametrize("name", ["roc_auc", "roc-auc", "auc"])
def test_other_names_of_rocauc(name):
    assert find_metric(name).name == "rocauc"


def test_column_aucs_of_a_single_row_and_of_none_are_not_numbers():
    from difformer.training.metrics import column_aucs

    assert column_aucs(torch.zeros(0, 3), torch.zeros(0, 3)).isnan().tolist() == [True] * 3
    assert column_aucs(torch.zeros(1, 3), torch.ones(1, 3)).isnan().tolist() == [True] * 3
    assert column_aucs(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])).tolist() == [1.0]


def test_class_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    from difformer.training.losses import class_weights

    y = np.array([0, 0, 0, 1, 1, 2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=y)
    unlabelled = torch.tensor([*y, -1])
    assert torch.allclose(class_weights(unlabelled, 3), torch.tensor(expected, dtype=torch.float32))
    assert class_weights(unlabelled, 4)[3] == 1  # a class that does not occur
    columns = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, torch.nan]])
    assert class_weights(columns, 2).tolist() == [2.0, 1.0]


def test_unknown_entries_of_many_labels_add_nothing_to_the_loss():
    outputs = torch.tensor([[2.0, -1.0], [0.5, 3.0]])
    targets = torch.tensor([[1.0, torch.nan], [0.0, torch.nan]])
    loss = problem_loss("multilabel")
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets[:, 0])
    torch.testing.assert_close(loss(outputs, targets), wanted)
    assert float(loss.mass(targets)) == 2
