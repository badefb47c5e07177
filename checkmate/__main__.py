"""`python -m checkmate` is the command `checkmate`."""

from checkmate.cli import main

if __name__ == "__main__":
    main()
