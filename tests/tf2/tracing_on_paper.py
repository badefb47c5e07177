"""Steps traced as `checkmate plan` traces them, and what they consist of."""

import re


def traced(model, optimizer="adam"):
    import keras

    from checkmate.tf2.models import step_on_paper

    keras.backend.clear_session()
    return step_on_paper(model, batch=4, size=None, loss=None, optimizer=optimizer)[0].traced


def definitions(step):
    """The step's ops, each with its inputs, attributes and the shapes of its outputs. The names of
    arguments, which TensorFlow numbers through the process, are replaced by their places."""
    names = {tensor.op.name: str(k) for k, tensor in enumerate(step.flat.inputs)}
    found = []
    number = re.compile(r"(?<=[A-Za-z])[-_]\d+")  # of functions and gradients, through the process
    for operation in step.flat.graph.get_operations():
        node = operation.node_def
        inputs = [names.get(each.partition(":")[0], each) for each in node.input]
        inputs.sort(key=lambda each: each if each[0] == "^" else "")  # a set, behind the others
        attributes = {
            key: number.sub("", str(value))
            for key, value in node.attr.items()
            if key not in ("_user_specified_name", "_XlaPropagateCompileTimeConsts")
        }
        name = names.get(node.name, node.name)
        shapes = [tensor.shape for tensor in operation.outputs]
        found.append((name, node.op, node.device, inputs, attributes, shapes))
    return found
