"""A solver for tests of all else: quick, and with the same plan on a busy machine as on an idle
one."""

from checkmate.solvers.auto.solver import Auto


class Unhurried(Auto):
    """Reads no clock."""

    def run(self, search):
        search.deterministic = True
        super().run(search)


UNHURRIED = Unhurried(max_stalls=0, rounds=0, states=1000)
