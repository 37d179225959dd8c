"""Interleaved step times of this project's code and of the thesis's own way."""
