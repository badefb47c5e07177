"""A solver for tests of all else: quick, and with the same plan on a busy machine as on an idle
one."""

from checkmate.solvers.auto.solver import Snapshot


class Unhurried(Snapshot):
    """Reads no clock."""

    def run(self, search):
        search.deterministic = True
        super().run(search)


UNHURRIED = Unhurried(snapshots=1, rounds=0)
