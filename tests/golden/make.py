"""Small training steps as TensorFlow ran them, as files that tests read without TensorFlow.

`python tests/golden/make.py [NAME ...]` writes NAME.json beside this file for each of `STEPS`: the
step's graph and plan in the formats of the library, the nodes of both programs, what each kernel
asks for, the peaks that are predicted, and the allocator's own log of one step under the plan. For
each of `MLPS`, of which nothing is run, it writes the graph alone, as NAME.json.gz. Write them anew
where tracing, planned functions or the model of the allocator changed on purpose.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

FOLDER = Path(__file__).parent
BUDGET = 0.6
"""Where the plan's budget lies between the graph's floor and the plain step's peak: the first of
this, 0.7, 0.8 and 0.9 for which there is a plan."""


def dense_chain(keras, layers):
    return [keras.Input((32,)), *(layers.Dense(64, activation="tanh") for _ in range(4))]


def convolutions(keras, layers):
    """Batch normalization and dropout, whose random state is a variable."""
    blocks = []
    for width in (8, 16):
        blocks += [layers.Conv2D(width, 3, padding="same"), layers.BatchNormalization()]
        blocks += [layers.ReLU(), layers.Dropout(0.3, seed=1)]
    return [keras.Input((16, 16, 3)), *blocks, layers.GlobalAveragePooling2D()]


def unet(keras, layers):
    inputs = keras.Input((16, 16, 3))
    wide = layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    deep = layers.Conv2D(16, 3, padding="same", activation="relu")(layers.MaxPooling2D()(wide))
    up = layers.Conv2DTranspose(8, 2, strides=2)(deep)
    joined = layers.Concatenate()([up, wide])
    return inputs, layers.Conv2D(8, 3, padding="same", activation="relu")(joined)


def residual_chain(keras, layers):
    x = inputs = keras.Input((64,))
    for _ in range(3):
        x = layers.Add()([x, layers.Dense(64, activation="gelu")(layers.LayerNormalization()(x))])
    return inputs, x


def transformer(keras, layers):
    x = inputs = keras.Input((16, 32))
    y = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 16)(y, y)])
    y = layers.Dense(64, activation="relu")(layers.LayerNormalization()(x))
    return inputs, layers.Add()([x, layers.Dense(32)(y)])


def embedding(keras, layers):
    dense = [layers.Dense(32, activation="tanh") for _ in range(4)]
    return [keras.Input((16,), dtype="int32"), layers.Embedding(50, 32), *dense]


def recurrent(keras, layers):
    """A loop, whose body no plan takes apart, behind dense layers."""
    x = inputs = keras.Input((8, 16))
    for _ in range(3):
        x = layers.Dense(64, activation="tanh")(x)
    return inputs, layers.Dense(8, activation="tanh")(layers.LSTM(16, return_sequences=True)(x))


def mixed_precision(keras, layers):
    return [
        keras.Input((32,)),
        *(layers.Dense(64, activation="relu", dtype="mixed_float16") for _ in range(5)),
    ]


def two_outputs(keras, layers):
    x = inputs = keras.Input((32,))
    for _ in range(4):
        x = layers.Dense(64, activation="swish")(x)
    return inputs, [layers.Dense(16)(x), layers.Dense(4, activation="tanh")(x)]


def depthwise(keras, layers):
    blocks = []
    for _ in range(2):
        blocks += [layers.SeparableConv2D(8, 3, padding="same"), layers.LayerNormalization()]
    return [keras.Input((12, 12, 8)), *blocks, layers.AveragePooling2D(2)]


def shared_layer(keras, layers):
    x, layer = (inputs := keras.Input((64,))), layers.Dense(64, activation="tanh")
    for _ in range(6):
        x = layer(x)
    return inputs, x


def branches(keras, layers):
    inputs = keras.Input((32,))
    heads = [layers.Dense(64, activation=name)(inputs) for name in ("tanh", "gelu", "softplus")]
    x = layers.Multiply()([layers.Dense(64, activation="tanh")(each) for each in heads])
    return inputs, layers.Dense(8)(layers.Concatenate()([x, *heads]))


STEPS = {
    each.__name__: each
    for each in (
        *(dense_chain, convolutions, unet, residual_chain, transformer, embedding, recurrent),
        *(mixed_precision, two_outputs, depthwise, shared_layer, branches),
    )
}
BATCH = {"dense_chain": 256, "residual_chain": 256, "embedding": 16, "transformer": 8}
"""Examples in a batch; 16 where nothing is said, and 128 for layers of plain vectors."""


MLPS = {
    "mlp_8x256": {"layers": 8, "width": 256, "batch": 8192, "fused": False},
    "mlp_12x512": {"layers": 12, "width": 512, "batch": 8192, "fused": True},
    "mlp_12x512_small_batch": {"layers": 12, "width": 512, "batch": 1024, "fused": True},
    "mlp_6x64_dropout": {"layers": 6, "width": 64, "batch": 256, "fused": False, "dropout": 0.1},
}
"""Hidden layers, their width, examples in a batch, share that dropout takes out, and whether
TensorFlow's graph optimizer fuses ops."""


def mlp(layers, width, batch, fused, dropout=0.0):
    """The graph of a step: dense layers with ReLU, ten classes, cross-entropy, Adam."""
    import keras
    import tensorflow as tf

    from checkmate.tf2 import trace
    from checkmate.tf2.compile import training_step
    from checkmate.tf2.costs.measured import with_costs

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not fused})
    keras.backend.clear_session()
    hidden = []
    for _ in range(layers):
        hidden.append(keras.layers.Dense(width, activation="relu"))
        hidden += [keras.layers.Dropout(dropout)] if dropout else []
    head = keras.layers.Dense(10, activation="softmax")
    model = keras.Sequential([keras.Input((width,)), *hidden, head])
    specs = tf.TensorSpec((batch, width)), tf.TensorSpec((batch,), tf.int32)
    loss = keras.losses.SparseCategoricalCrossentropy()
    step, arguments = training_step(model, loss, "adam", *specs)
    return with_costs(trace(step, *arguments), "roofline")


def step_of(name):
    """(step, variables, batch) of a model that is trained towards zero by Adam or SGD."""
    import keras
    import tensorflow as tf

    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    made = STEPS[name](keras, keras.layers)
    if isinstance(made, list):
        inputs, *rest = made
        made = inputs, keras.Sequential(rest)(inputs)
    model = keras.Model(*made)
    optimizer = keras.optimizers.Adam() if name == "dense_chain" else keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    shape = model.input_shape[1:]
    shape = (BATCH.get(name, 16 if len(shape) > 1 else 128), *shape)
    kind = model.inputs[0].dtype
    batch = (
        tf.constant([[(i + k) % 50 for k in range(shape[1])] for i in range(shape[0])], kind)
        if kind == "int32"
        else tf.random.stateless_normal(shape, (1, 2))
    )

    def step(x):
        with tf.GradientTape() as tape:
            found = tf.nest.flatten(model(x, training=True))
            loss = tf.add_n([tf.reduce_mean(tf.square(tf.cast(y, tf.float32))) for y in found])
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss, found

    return step, model, batch


def rows_of(program, keys):
    """The nodes as rows; names are their numbers, keys those of `keys`."""
    number = {node.name: k for k, node in enumerate(program.nodes)}

    def tensor(each):
        return [number.get(each[0], -1), each[1]]  # -1: given from outside

    rows = [
        [
            keys.setdefault(node.key, len(keys)),
            node.kind.value[0],
            [tensor(each) for each in node.reads],
            [*node.output_bytes],
            node.workspace_bytes,
            int(node.in_place),
            int(node.shares),
        ]
        for node in program.nodes
    ]
    return {"nodes": rows, "outputs": [tensor(each) for each in program.outputs]}


def saved(save):
    """What `save(path)` writes."""
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "file.json")
        return json.loads((Path(folder) / "file.json").read_text())


def golden(name):
    import tensorflow as tf

    from checkmate.core.allocator import Pool
    from checkmate.core.events import learn, requests_by_node
    from checkmate.core.files import save_plan
    from checkmate.core.plan import Plan
    from checkmate.core.replay import floor, replay
    from checkmate.solvers.solve import solve
    from checkmate.tf2 import trace
    from checkmate.tf2.costs.measured import costs_of
    from checkmate.tf2.execution.replay import Replayed
    from checkmate.tf2.graph.sizes import exact_bytes
    from checkmate.tf2.memory.prediction import Predictor, log_of
    from checkmate.tf2.memory.probe import probe
    from checkmate.tf2.memory.profiler import observe

    step, _model, batch = step_of(name)
    traced = trace(step, tf.TensorSpec(batch.shape, batch.dtype))
    found = costs_of(traced, "roofline")
    graph = replace(found.graph, name=name)
    lowest = floor(graph)
    peak = replay(graph, Plan.keep_all(graph)).peak_bytes
    for share in (BUDGET, 0.7, 0.8, 0.9):
        budget = int(lowest.bytes + share * (peak - lowest.bytes))
        result = solve(graph, budget, deterministic=True, throw=False)
        if result.plan is not None:
            break
    assert result.plan is not None and result.plan.recomputed, name

    predictor = Predictor(traced, graph, ())
    plain, planned = predictor.write(traced.plain_plan()), predictor.write(result.plan)
    run = Replayed(traced, result.plan, written=planned.written)
    kept = [run(batch) for _ in range(2)]
    pool = probe(4 << 20)
    seen = observe(lambda: run(batch))
    footprints = learn(planned.program, requests_by_node(log_of(seen)))
    predictor = Predictor(traced, graph, (), footprints)
    predictor.pool = Pool.of_free_chunks([(1 << 50, 1 << 50)])
    del kept

    keys = {}
    programs = {"plain": rows_of(plain.program, keys), "planned": rows_of(planned.program, keys)}
    programs["plain"]["peak"] = predictor.plain_peak_bytes()
    programs["planned"]["peak"] = predictor.peak(planned).bytes
    for each, paper in zip(programs.values(), (plain, planned), strict=True):
        each["constants"] = [*paper.constants]
    number = {node.name: k for k, node in enumerate(planned.program.nodes)}
    lowest_address = min([each.address for each in seen.events] + [a for a, _ in pool.free_chunks])
    return {
        "graph": saved(graph.save),
        "plan": saved(
            lambda path: save_plan(
                result.plan, path, graph=graph, budget_bytes=budget, bound=result.bound
            )
        ),
        "floor": [lowest.bytes, graph.ops[lowest.op].name],
        "peaks": [peak, result.peak_bytes],
        "cost": result.cost,
        "batch": [exact_bytes(batch)],
        **programs,
        # By the number of a node under the plan, and of a key.
        "footprints": [
            [[k, footprints[name].row()] for name, k in numbers.items() if name in footprints]
            for numbers in (number, keys)
        ],
        "log": {
            "in_use": pool.in_use_bytes,
            "free": [[address - lowest_address, size] for address, size in pool.free_chunks],
            "events": [
                [
                    # A release is -2, no name -1; ops within a loop come behind the nodes.
                    -2 if op is None else number.setdefault(op, len(number)) if op else -1,
                    address - lowest_address,
                    size,
                    int(is_output),
                    event.chunk_bytes,
                    event.in_use_bytes,
                ]
                for (op, address, size, is_output), event in zip(
                    log_of(seen), seen.events, strict=True
                )
            ],
        },
    }


def text_of(data):
    """JSON with a line for each key."""
    lines = (f'"{key}":{json.dumps(each, separators=(",", ":"))}' for key, each in data.items())
    return "{" + ",\n".join(lines) + "}\n"


if __name__ == "__main__":
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
    }
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    for name in sys.argv[1:] or [*STEPS, *MLPS]:
        if name in MLPS:
            text = json.dumps(
                saved(replace(mlp(**MLPS[name]), name=name).save), separators=(",", ":")
            )
            content = gzip.compress(text.encode(), 9, mtime=0)
            (FOLDER / f"{name}.json.gz").write_bytes(content)
        else:
            content = text_of(golden(name)).encode()
            (FOLDER / f"{name}.json").write_bytes(content)
        print(f"{name}: {len(content):,} bytes", flush=True)
