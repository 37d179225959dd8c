"""The image data sets: verified archives (`fetch`) and the arrays that every later stage reads (`datasets`)."""
