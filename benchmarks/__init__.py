"""This project beside its peers: one command times them all, interleaved, on the machine at hand."""
