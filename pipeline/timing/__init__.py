"""Step times of today's code and of the thesis's own way, taken side by side."""
