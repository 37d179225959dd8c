"""What the study says: intervals, tests, claims and position vectors. Reads arrays, writes nothing."""
