"""Captioning: scenes of several images, the sentences that describe them, and the models that learn to write these."""
