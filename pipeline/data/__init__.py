"""The image data sets: `fetch` verifies their archives, and `datasets` makes the arrays that every later stage reads."""
