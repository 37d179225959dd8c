"""One thin module per DVC stage."""
