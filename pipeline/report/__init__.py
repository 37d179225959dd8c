"""Pages and figures of a study's results. Equal inputs give equal bytes."""
