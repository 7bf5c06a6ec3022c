"""Speed and memory as ratios measured side by side; `make bench` runs all `*_bench` modules."""
