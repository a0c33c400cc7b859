"""Side-by-side timings: each module gives rows, `python -m benchmarks` prints them and keeps them as JSON."""
