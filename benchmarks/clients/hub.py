"""Models of KerasHub, small, by its own constructors, with random weights."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import tensorflow as tf

from benchmarks.clients.program import Program
from benchmarks.zoo.batches import normal, whole

WORDS = 1000
hub = keras_hub.models


def _tokens(batch: int, length: int, prefix: str = "") -> dict[str, tf.Tensor]:
    return {
        f"{prefix}token_ids": whole(batch, length, below=WORDS),
        f"{prefix}padding_mask": tf.ones((batch, length), tf.int32),
    }


def bert(batch: int = 8, length: int = 64) -> Program:
    """BERT that classifies text, as `compile` of the package has it."""
    backbone = hub.BertBackbone(
        vocabulary_size=WORDS, num_layers=4, num_heads=4, hidden_dim=128, intermediate_dim=512
    )
    model = hub.BertTextClassifier(backbone, num_classes=4)
    model.compile()
    inputs = _tokens(batch, length) | {"segment_ids": tf.zeros((batch, length), tf.int32)}
    return Program(model, inputs, whole(batch, below=4, seed=5))


def _language_model(model: Any, batch: int, length: int) -> Program:
    model.compile()
    return Program(model, _tokens(batch, length), whole(batch, length, below=WORDS, seed=5))


def gpt2(batch: int = 8, length: int = 64) -> Program:
    """GPT-2."""
    backbone = hub.GPT2Backbone(
        vocabulary_size=WORDS, num_layers=4, num_heads=4, hidden_dim=128, intermediate_dim=512
    )
    return _language_model(hub.GPT2CausalLM(backbone), batch, length)


def gemma_lora(batch: int = 8, length: int = 64) -> Program:
    """Gemma, of which only matrices of rank 4 are trained."""
    backbone = hub.GemmaBackbone(
        vocabulary_size=WORDS,
        num_layers=4,
        num_query_heads=4,
        num_key_value_heads=1,
        hidden_dim=128,
        intermediate_dim=512,
        head_dim=32,
    )
    backbone.enable_lora(rank=4)
    return _language_model(hub.GemmaCausalLM(backbone), batch, length)


def llama(batch: int = 8, length: int = 64) -> Program:
    """Llama."""
    backbone = hub.LlamaBackbone(
        vocabulary_size=WORDS,
        num_layers=4,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=128,
        intermediate_dim=512,
    )
    return _language_model(hub.LlamaCausalLM(backbone), batch, length)


def mixtral(batch: int = 8, length: int = 64) -> Program:
    """Mixtral: a mixture of experts."""
    backbone = hub.MixtralBackbone(
        vocabulary_size=WORDS,
        num_layers=3,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=128,
        intermediate_dim=256,
        num_experts=4,
    )
    return _language_model(hub.MixtralCausalLM(backbone), batch, length)


def _translator(backbone: Any, inputs: dict[str, tf.Tensor], batch: int, length: int) -> Program:
    hidden = backbone.output["decoder_sequence_output"]
    model = keras.Model(
        backbone.input, backbone.token_embedding(hidden, reverse=True), name=backbone.name
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return Program(model, inputs, whole(batch, length, below=WORDS, seed=5))


def whisper(batch: int = 4, length: int = 32) -> Program:
    """Whisper: speech to text."""
    backbone = hub.WhisperBackbone(
        vocabulary_size=WORDS,
        num_layers=2,
        num_heads=4,
        hidden_dim=128,
        intermediate_dim=512,
        max_encoder_sequence_length=200,
        max_decoder_sequence_length=length,
    )
    inputs = {"encoder_features": normal(batch, 200, 80), **_tokens(batch, length, "decoder_")}
    return _translator(backbone, inputs, batch, length)


def t5(batch: int = 8, length: int = 48) -> Program:
    """T5: text to text."""
    backbone = hub.T5Backbone(
        vocabulary_size=WORDS, num_layers=3, num_heads=4, hidden_dim=128, intermediate_dim=512
    )
    inputs = _tokens(batch, length, "encoder_") | _tokens(batch, length, "decoder_")
    return _translator(backbone, inputs, batch, length)


def hub_vit(batch: int = 8, size: int = 64) -> Program:
    """A vision transformer that classifies images."""
    backbone = hub.ViTBackbone(
        image_shape=(size, size, 3),
        patch_size=(8, 8),
        num_layers=4,
        num_heads=4,
        hidden_dim=128,
        mlp_dim=512,
    )
    model = hub.ViTImageClassifier(backbone, num_classes=10)
    model.compile()
    return Program(model, normal(batch, size, size, 3), whole(batch, below=10))


def _resnet_backbone(size: int) -> Any:
    return hub.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 64, 128, 256],
        stackwise_num_blocks=[2, 2, 2, 2],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="bottleneck_block",
        image_shape=(size, size, 3),
    )


def hub_resnet(batch: int = 8, size: int = 96) -> Program:
    """ResNet that classifies images."""
    model = hub.ResNetImageClassifier(_resnet_backbone(size), num_classes=10)
    model.compile()
    return Program(model, normal(batch, size, size, 3), whole(batch, below=10))


def deeplab(batch: int = 4, size: int = 96) -> Program:
    """DeepLabV3+ that segments images."""
    backbone = hub.DeepLabV3Backbone(
        image_encoder=_resnet_backbone(size),
        low_level_feature_key="P2",
        spatial_pyramid_pooling_key="P5",
        upsampling_size=8,
        dilation_rates=[6, 12, 18],
        image_shape=(size, size, 3),
    )
    return _segments(hub.DeepLabV3ImageSegmenter(backbone, num_classes=5), batch, size)


def segformer(batch: int = 4, size: int = 96) -> Program:
    """SegFormer that segments images."""
    encoder = hub.MiTBackbone(
        image_shape=(size, size, 3),
        num_layers=4,
        hidden_dims=[16, 32, 64, 128],
        layerwise_depths=[1, 1, 1, 1],
        layerwise_num_heads=[1, 2, 4, 8],
        layerwise_sr_ratios=[8, 4, 2, 1],
        layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2],
        max_drop_path_rate=0.1,
    )
    backbone = hub.SegFormerBackbone(image_encoder=encoder, projection_filters=64)
    return _segments(hub.SegFormerImageSegmenter(backbone, num_classes=5), batch, size)


def _segments(model: Any, batch: int, size: int) -> Program:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return Program(model, normal(batch, size, size, 3), whole(batch, size, size, below=5))


def diffusion_transformer(batch: int = 4, side: int = 16) -> Program:
    """The noise predictor of Stable Diffusion 3."""
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT  # not among its public names

    model = MMDiT(
        patch_size=2,
        hidden_dim=128,
        num_layers=3,
        num_heads=4,
        position_size=side,
        latent_shape=(side, side, 16),
        context_shape=(32, 64),
        pooled_projection_shape=(64,),
    )
    model.compile("adam", "mse")
    inputs = {
        "latent": normal(batch, side, side, 16),
        "context": normal(batch, 32, 64),
        "pooled_projection": normal(batch, 64),
        "timestep": tf.random.stateless_uniform((batch, 1), (1, 2), maxval=1000.0),
    }
    return Program(model, inputs, normal(batch, side, side, 16, seed=5))


MODELS = (
    bert,
    gpt2,
    gemma_lora,
    llama,
    mixtral,
    whisper,
    t5,
    hub_vit,
    hub_resnet,
    deeplab,
    segformer,
    diffusion_transformer,
)
