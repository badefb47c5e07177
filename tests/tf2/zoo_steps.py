"""Training steps of the zoo's models, with batches of any size."""


def step_and_batch(name, size=8):
    import keras
    import tensorflow as tf

    from benchmarks.zoo import models
    from benchmarks.zoo.batches import Task
    from checkmate.tf2.training_step import training_step

    keras.utils.set_random_seed(0)
    made = models()[name]()
    if isinstance(made, Task):
        step, batch = made.step, made.batch
    else:
        batch = (made.inputs, made.labels)
        step, _ = training_step(made.model, made.loss, made.optimizer, *batch)
    return step, tf.nest.map_structure(
        lambda leaf: tf.concat([leaf] * (-(-size // leaf.shape[0])), 0)[:size], batch
    )
