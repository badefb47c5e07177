"""A plan in stage form with exact memory, changed move by move, and the repairs made of such
moves."""
