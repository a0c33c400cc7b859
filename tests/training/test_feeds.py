import pytest
import torch
from small_tasks import point_sets

from difformer.training import TrainConfig, feeds
from difformer.training.feeds import GraphsFeed, graphs_at_a_time
from difformer.training.model import build_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", ["difformer-s", "difformer-a", "gcn"])
def test_the_batch_size_of_an_evaluation_does_not_change_its_result(model, monkeypatch):
    task, config = point_sets(), TrainConfig(model=model, batch_size=4, options={"hidden_channels": 8})
    torch.manual_seed(0)
    net = build_model(task, config).eval()
    both = [GraphsFeed(task, task.splits[0], config, 0, CPU)]
    monkeypatch.setattr(feeds, "graphs_at_a_time", lambda task, size, device: 7)
    both.append(GraphsFeed(task, task.splits[0], config, 0, CPU))
    assert len(both[0].passes()) > len(both[1].passes()) > 1
    with torch.no_grad():
        torch.testing.assert_close(*(feed.outputs(net) for feed in both), atol=1e-5, rtol=1e-5)


def test_evaluation_on_a_gpu_batches_more_small_graphs_but_not_more_large_ones(monkeypatch):
    task, gpu = point_sets(), torch.device("cuda")
    assert graphs_at_a_time(task, 4, CPU) == 4
    mean = task.num_nodes / task.num_instances
    monkeypatch.setattr(feeds, "EVALUATED_NODES", 10 * task.num_nodes // task.num_instances)
    assert graphs_at_a_time(task, 4, gpu) in (9, 10)
    monkeypatch.setattr(feeds, "EVALUATED_NODES", int(mean))
    assert graphs_at_a_time(task, 4, gpu) == 4
