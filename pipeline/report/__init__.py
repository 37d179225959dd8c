"""Pages and figures from what the runs left behind. Equal inputs give equal bytes."""
