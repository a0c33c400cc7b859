"""The page of measured speed says what the results file says."""

import json

from benchmarks.speed_page import PAGE, RESULTS, merged, page


def test_the_page_is_what_the_results_file_gives():
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(RESULTS.read_text(encoding="utf-8")))


def test_a_later_measurement_replaces_an_earlier_one():
    first = {"benchmark": "scaling", "system": "GCN", "nodes": 10, "device": "a", "ms": 2.0}
    assert merged([first, {**first, "ms": 1.0}, {**first, "device": "b"}]) == [
        {**first, "ms": 1.0},
        {**first, "device": "b"},
    ]
