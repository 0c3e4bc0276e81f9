"""Reports as one HTML page: what was asked, the answer, and all that it rests on, for a browser without a network."""
