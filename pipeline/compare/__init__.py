"""Two commits side by side: which variants came, went or changed, what was trained anew and why, and what that did to accuracy.

Everything is read from the text files that a study commits (or from MLflow); nothing is checked out and nothing trained.
"""
