"""Random op logs for Hypothesis, with everything the format knows, and small ones by rule."""

from __future__ import annotations

from hypothesis import strategies as st

from checkmate.dtr.log import OpLog
from checkmate.dtr.log_format import Annotate, Call, Constant, Copy, CopyFrom, Mutate, Release


@st.composite
def op_logs(draw, max_calls: int = 22, many_views: bool = False) -> OpLog:
    """A legal log. Views are of calls with one input, unless `many_views`."""
    sizes = st.sampled_from((0, 1, 2, 2, 3, 4))
    times = st.sampled_from((0, 1, 1, 2, 5))
    instructions = [Constant("w0", draw(st.integers(0, 2)))]
    tensor, names = {"w0": 0}, {0: 1}  # name -> tensor, tensor -> how many names

    def create(name):
        tensor[name] = len(names)
        names[tensor[name]] = 1

    def forget(name):
        names[tensor[name]] -= 1

    for k in range(draw(st.integers(3, max_calls))):
        alive = [name for name in tensor if names[tensor[name]] > 0 and tensor[name] is not None]
        some = st.sampled_from(alive) if alive else None
        kind = draw(
            st.sampled_from(("call",) * 14 + ("mutate", "copy", "copy_from", "release", "release"))
        )
        if kind == "call" or not alive:
            args = draw(st.lists(some, max_size=3)) if alive else []
            results = [f"x{k}_{j}" for j in range(draw(st.sampled_from((1, 1, 1, 2, 3))))]
            viewable = len({tensor[name] for name in args}) == 1 or (many_views and bool(args))
            last = max(0, len(args) - 1)
            aliases = [
                draw(st.integers(0, last)) if viewable and not draw(st.integers(0, 3)) else -1
                for _ in results
            ]
            instructions.append(
                Call(
                    tuple(results),
                    "op",
                    tuple(args),
                    draw(times),
                    tuple(draw(sizes) for _ in results),
                    tuple(aliases),
                )
            )
            for name in results:
                create(name)
        elif kind == "mutate":
            args = draw(st.lists(some, min_size=1, max_size=3, unique_by=lambda name: tensor[name]))
            mutated = draw(st.lists(st.integers(0, len(args) - 1), min_size=1, unique=True))
            instructions.append(Mutate("write", tuple(args), tuple(mutated), draw(times)))
            for j in mutated:
                forget(args[j])
                create(args[j])
        elif kind == "copy":
            source, name = draw(some), f"c{k}"
            instructions.append(Copy(name, source))
            tensor[name] = tensor[source]
            names[tensor[source]] += 1
        elif kind == "copy_from":
            name, source = draw(some), draw(some)
            if tensor[name] == tensor[source]:
                continue
            instructions.append(CopyFrom(name, source))
            forget(name)
            tensor[name] = tensor[source]
            names[tensor[source]] += 1
        else:
            name = draw(some)
            instructions.append(Release(name))
            forget(name)
            if names[tensor[name]] > 0:
                del tensor[name]
    # Little is left at the end: what is has to be in memory together.
    alive = [name for name in tensor if names[tensor[name]] > 0]
    kept = draw(st.sets(st.sampled_from(alive), max_size=2)) if alive else ()
    return OpLog(
        (*instructions, Annotate("END"), *(Release(name) for name in alive if name not in kept))
    )


def chain(layers: int, *, size: int = 1, time: int = 1) -> OpLog:
    """Forward ops in a row, and one more that reads the first and the last."""
    calls = [
        Call((f"x{i}",), "layer", (f"x{i - 1}",) if i else (), time, (size,), (-1,))
        for i in range(layers)
    ]
    return OpLog(
        (
            *calls,
            Call(("y",), "join", ("x0", f"x{layers - 1}"), time, (size,), (-1,)),
            *(Release(f"x{i}") for i in range(layers)),
        )
    )
