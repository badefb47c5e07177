"""The sub-commands of `checkmate`, one per file. They read arguments, call the library and print
what it returns."""
