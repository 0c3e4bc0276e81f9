"""The P4 program: assembled from one control per file, and what p4c made of it."""
