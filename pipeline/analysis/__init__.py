"""What the runs say: intervals, tests, claims and position vectors. Reads arrays, writes nothing."""
