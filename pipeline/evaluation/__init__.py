"""The evaluation of stored weights: they are tested again, probed and compared with their training. Results are kept while valid."""
